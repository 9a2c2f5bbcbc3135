// The sliders: one sets the operating point, the other follows, and all numbers that depend on it are updated.
function formatRisk(point) {
  return point.accepted ? formatPercent(point.errors / point.accepted, 3) : "–";
}

function startOperatingPoint(page, plots) {
  const [tolerated, coverage, choice] = ["tolerated", "coverage", "method"].map(byId);
  const rows = new Map([...document.querySelectorAll("#all-methods tbody tr")].map((row) => [row.dataset.method, row]));
  let setBy = "risk";

  const selected = () => page.methods.find((method) => method.name === choice.value);
  const risk = () => page.risks[Number(tolerated.value)];
  const targetCoverage = () => Number(coverage.value) / 1000;
  const pointFor = (method) => (setBy === "risk" ? pointAtRisk(method, risk()) : pointAtCoverage(method, targetCoverage(), page.images));

  function moveOtherSlider(point) {
    if (setBy === "risk") coverage.value = Math.max(1, Math.round((1000 * point.accepted) / page.images));
    else tolerated.value = Math.min(page.risks.length - 1, firstAtLeast(page.risks, point.errors / point.accepted - ROUNDING));
  }

  function showPoint(point) {
    byId("tolerated-value").textContent = formatPercent(risk(), 6);
    byId("coverage-value").textContent = formatPercent(point.accepted / page.images, 1);
    tolerated.setAttribute("aria-valuetext", formatPercent(risk(), 6));
    coverage.setAttribute("aria-valuetext", formatPercent(point.accepted / page.images, 1));
    byId("accepted").textContent = formatCount(point.accepted);
    byId("rejected").textContent = formatCount(page.images - point.accepted);
    byId("wrong").textContent = formatCount(point.errors);
    byId("risk").textContent = formatRisk(point);
    byId("threshold").textContent = formatThreshold(point);
    byId("guarantee").textContent = describeGuarantee(selected());
  }

  function describeGuarantee(method) {
    if (method.no_guarantee) return `No guarantee: ${method.no_guarantee}`;
    const level = formatPercent(1 - page.delta, 6);
    const point = certifiedPoint(method, Number(tolerated.value));
    if (point) {
      return (
        `Certified: with threshold ${formatThreshold(point)}, at most ${formatPercent(risk(), 6)} of the accepted predictions on new images like these are wrong ` +
        `(confidence level ${level}). Here it accepts ${formatCount(point.accepted)} images (${formatPercent(point.accepted / page.images, 1)}), ${formatCount(point.errors)} of them wrong.`
      );
    }
    const first = method.certified.accepted.findIndex((count) => count > 0);
    const smallest = first < 0 ? "no risk on this slider can be guaranteed" : `the smallest risk that can be guaranteed is ${formatPercent(page.risks[first], 6)}`;
    return `Not certified: ${formatCount(page.images)} images are too few to guarantee ${formatPercent(risk(), 6)} risk at confidence level ${level}; ${smallest}.`;
  }

  function showRow(method) {
    const point = pointFor(method);
    const certified = certifiedPoint(method, Number(tolerated.value));
    const row = rows.get(method.name);
    const values = [
      formatThreshold(point),
      `${formatCount(point.accepted)} (${formatPercent(point.accepted / page.images, 1)})`,
      formatCount(page.images - point.accepted),
      formatCount(point.errors),
      formatRisk(point),
      certified ? `${formatCount(certified.accepted)} (${formatPercent(certified.accepted / page.images, 1)})` : "none",
    ];
    row.classList.toggle("selected", method === selected());
    values.forEach((value, column) => (row.cells[column + 1].textContent = value));
  }

  function update() {
    const point = pointFor(selected());
    moveOtherSlider(point);
    showPoint(point);
    page.methods.forEach(showRow);
    plots.risk.move(point);
    plots.histogram.move(point.threshold);
  }

  function selectMethod() {
    plots.histogram.show(selected());
    plots.reliability.show(selected());
    update();
  }

  tolerated.addEventListener("input", () => {
    setBy = "risk";
    update();
  });
  coverage.addEventListener("input", () => {
    setBy = "coverage";
    update();
  });
  choice.addEventListener("change", selectMethod);
  for (const method of page.methods) rows.get(method.name).querySelector(".key").style.color = methodColor(method.index);
  tolerated.value = page.risks.indexOf(page.risk);
  selectMethod();
}
