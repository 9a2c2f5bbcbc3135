// The sliders: one sets the operating point, the other follows, and the page is updated.
function formatRisk(point) {
  return point.accepted ? `${Number(formatDigits((100 * point.errors) / point.accepted, 3))}\u00a0%` : "–";
}

function formatCost(cost) {
  return cost.toLocaleString("en-US", { maximumSignificantDigits: 4 });
}

function joinNames(names) {
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names.join("");
}

// Describes the guarantee of a method at the tolerated risk with this index.
function describeGuarantee(page, method, index) {
  if (method.no_guarantee) return `No guarantee: ${method.no_guarantee}`;
  const [risk, level] = [formatPercent(page.risks[index], 6), formatPercent(1 - page.delta, 6)];
  const point = certifiedPoint(method, index);
  if (!point) {
    const first = method.certified.accepted.findIndex((count) => count > 0);
    const smallest = first < 0 ? "no risk on this slider can be guaranteed" : `the smallest possible guarantee is ${formatPercent(page.risks[first], 6)} risk`;
    return `Not certified: ${formatCount(page.images)} images are too few to guarantee ${risk} risk at confidence level ${level}; ${smallest}.`;
  }
  const shared = page.sharing.length > 1 ? `, shared by ${joinNames(page.sharing)}` : "";
  return (
    `Certified: with threshold ${formatThreshold(point)}, at most ${risk} of the accepted predictions on new images like these are wrong ` +
    `(confidence level ${level}${shared}). Here it accepts ${formatCount(point.accepted)} images (${formatPercent(point.accepted / page.images, 1)}), ` +
    `${formatCount(point.errors)} of them wrong. It is valid for a risk chosen before seeing these results.`
  );
}

// Number of unknown images accepted at the selected operating point.
function describeUnknown(page, method, point) {
  const count = countUnknown(method, point);
  if (count === null) return `${method.words}: ranks a closed set of images: thresholds do not apply to unknown images.`;
  const share = formatPercent(count / page.unknown, 1);
  return `The operating point selected above accepts ${formatCount(count)} of ${pluralize(page.unknown, "unknown image")} (${share}).`;
}

// `sections` have an update(decisions), `plots` also follow the selected method.
function startOperatingPoint(page, plots, sections) {
  const [tolerated, coverage, guaranteed, choice] = ["tolerated", "coverage", "guaranteed", "method"].map(byId);
  const rows = new Map([...document.querySelectorAll("#all-methods tbody tr")].map((row) => [row.dataset.method, row]));
  const fields = ["cost-error", "cost-review"].map(byId);
  let setBy = "risk";

  const selected = () => page.methods.find((method) => method.name === choice.value);
  const riskIndex = () => Number(tolerated.value);
  const risk = () => page.risks[riskIndex()];

  // The two costs, null unless both are numbers above 0.
  function readCosts() {
    const [error, review] = fields.map((field) => Number(field.value));
    return error > 0 && review > 0 && Number.isFinite(error + review) ? { error, review } : null;
  }

  // Whether the page shows the decisions of the calibrated policy, to which methods are compared at its coverage.
  const isPolicy = () => page.policy !== null && guaranteed.checked;

  function observedPoint(method) {
    if (isPolicy()) return page.policy.accepted ? pointAtCoverage(method, page.policy.accepted / page.images, page.images) : NOTHING_ACCEPTED;
    if (setBy === "costs") return pointAtCosts(method, readCosts(), page.images);
    return setBy === "coverage" ? pointAtCoverage(method, Number(coverage.value) / 1000, page.images) : pointAtRisk(method, risk());
  }

  function chosenPoint(method) {
    if (isPolicy()) return page.policy;
    return guaranteed.checked ? (certifiedPoint(method, riskIndex()) ?? NOTHING_ACCEPTED) : observedPoint(method);
  }

  function moveOtherSlider(point) {
    if (setBy !== "coverage") coverage.value = Math.max(1, Math.round((1000 * point.accepted) / page.images));
    if (setBy !== "risk") tolerated.value = Math.min(page.risks.length - 1, firstAtLeast(page.risks, point.errors / Math.max(1, point.accepted) - ROUNDING));
  }

  function goal() {
    if (isPolicy()) return "the coverage of the policy, with one threshold each";
    if (setBy === "costs") return "the least cost";
    return setBy === "coverage" ? `${formatPercent(Number(coverage.value) / 1000, 1)} coverage` : `${formatPercent(risk(), 6)} tolerated risk`;
  }

  function describeSetting(method, point) {
    const decided = `Decided by ${method.words}:`;
    if (isPolicy()) return `${decided} ${page.policy.setting}`;
    if (!point.accepted && setBy === "costs") return `${decided} at every threshold, reviewing all images costs less.`;
    if (!point.accepted) return `${decided} no threshold ${guaranteed.checked ? "guarantees" : "reaches"} ${formatPercent(risk(), 6)} risk.`;
    return `${decided} a prediction is accepted if its confidence is at least ${formatThreshold(point)}, for ${goal()}${guaranteed.checked ? ", with guarantee" : ""}.`;
  }

  // The costs of the point, and the command that certifies the threshold of least cost.
  function describeCosts(method, point) {
    const costs = readCosts();
    if (!costs) return "Enter both costs to find the threshold of least cost.";
    const all = { accepted: page.images, errors: page.errors };
    const [cost, review, accept] = [point, NOTHING_ACCEPTED, all].map((one) => formatCost((1000 * totalCost(one, costs, page.images)) / page.images));
    const sentence = `Of these images, 1,000 cost ${cost} here, ${review} if all are reviewed, and ${accept} if all are accepted; new ones cost more.`;
    if (method.no_guarantee) return sentence;
    const command = `secondlook calibrate --run RUN --cost-error ${costs.error} --cost-review ${costs.review} --method '${method.name}'`;
    return `${sentence} To certify the threshold of least cost: ${command}`;
  }

  function showPoint(method, point) {
    const texts = {
      lead: describeDecisions(page, point),
      setting: describeSetting(method, point),
      costs: describeCosts(method, point),
      guarantee: isPolicy() ? page.policy.guarantee : describeGuarantee(page, method, riskIndex()),
      summary: `${formatCount(point.accepted)} accepted, ${formatCount(point.errors)} wrong · ${formatCount(page.images - point.accepted)} to review, ${formatCount(page.errors - point.errors)} caught`,
      "tolerated-value": formatPercent(risk(), 6),
      "coverage-value": formatPercent(point.accepted / page.images, 1),
      "all-methods-caption": `All methods at ${goal()}`,
      accepted: formatCount(point.accepted),
      rejected: formatCount(page.images - point.accepted),
      wrong: formatCount(point.errors),
      risk: formatRisk(point),
      threshold: isPolicy() ? page.policy.threshold_text : formatThreshold(point),
    };
    if (page.unknown !== null) texts["unknown-accepted"] = describeUnknown(page, method, point);
    for (const [id, text] of Object.entries(texts)) byId(id).textContent = text;
    tolerated.setAttribute("aria-valuetext", texts["tolerated-value"]);
    coverage.setAttribute("aria-valuetext", texts["coverage-value"]);
  }

  function showRow(method) {
    const point = observedPoint(method);
    const certified = certifiedPoint(method, riskIndex());
    const row = rows.get(method.name);
    const coverage = ({ accepted }) => `${formatCount(accepted)} (${formatPercent(accepted / page.images, 1)})`;
    const values = [
      formatThreshold(point),
      coverage(point),
      formatCount(page.images - point.accepted),
      formatCount(point.errors),
      formatRisk(point),
      certified ? coverage(certified) : "none",
    ];
    row.classList.toggle("selected", method === selected());
    [...row.cells].slice(1).forEach((cell, column) => (cell.textContent = values[column]));
  }

  function update() {
    const method = selected();
    const point = chosenPoint(method);
    moveOtherSlider(point);
    showPoint(method, point);
    page.methods.forEach(showRow);
    plots.risk.move(point);
    plots.histogram.move(point.threshold);
    const decisions = { method, point, accepted: countAccepted(page, method, point) };
    for (const section of sections) section.update(decisions);
  }

  function selectMethod() {
    plots.histogram.show(selected());
    plots.reliability.show(selected());
    update();
  }

  function setFrom(slider) {
    setBy = slider;
    if (slider !== "risk" || page.policy) guaranteed.checked = false;
    update();
  }

  function setGuaranteed() {
    setBy = "risk";
    if (!isPolicy()) return update();
    tolerated.value = page.risks.indexOf(page.risk);
    choice.value = page.policy.method;
    selectMethod();
  }

  function chooseMethod() {
    if (page.policy) guaranteed.checked = false;
    selectMethod();
  }

  tolerated.addEventListener("input", () => setFrom("risk"));
  guaranteed.addEventListener("change", setGuaranteed);
  coverage.addEventListener("input", () => setFrom("coverage"));
  for (const field of fields) field.addEventListener("input", () => setFrom(readCosts() ? "costs" : "risk"));
  choice.addEventListener("change", chooseMethod);
  for (const method of page.methods) rows.get(method.name).cells[0].prepend(key(method));
  tolerated.value = page.risks.indexOf(page.risk);
  guaranteed.checked = page.policy !== null;
  selectMethod();
}
