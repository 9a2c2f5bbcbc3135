// The sliders: either one sets the threshold, the other follows, and everything that depends on it is told.
function asRisk(point) {
  return point.accepted ? asPercent(point.errors / point.accepted, 3) : "–";
}

function operatingPoint(page, plots) {
  const [tolerated, coverage, choice] = ["tolerated", "coverage", "method"].map(byId);
  const rows = new Map([...document.querySelectorAll("#all-methods tbody tr")].map((row) => [row.dataset.method, row]));
  let setBy = "risk";

  const shown = () => page.methods.find((method) => method.name === choice.value);
  const risk = () => page.risks[Number(tolerated.value)];
  const share = () => Number(coverage.value) / 1000;
  const pointFor = (method) => (setBy === "risk" ? pointAtRisk(method, risk()) : pointAtCoverage(method, share(), page.images));

  function follow(point) {
    if (setBy === "risk") coverage.value = Math.max(1, Math.round((1000 * point.accepted) / page.images));
    else tolerated.value = Math.min(page.risks.length - 1, firstAtLeast(page.risks, point.errors / point.accepted - ROUNDING));
  }

  function tell(point) {
    byId("tolerated-value").textContent = asPercent(risk(), 6);
    byId("coverage-value").textContent = asPercent(point.accepted / page.images, 1);
    tolerated.setAttribute("aria-valuetext", asPercent(risk(), 6));
    coverage.setAttribute("aria-valuetext", asPercent(point.accepted / page.images, 1));
    byId("accepted").textContent = asCount(point.accepted);
    byId("rejected").textContent = asCount(page.images - point.accepted);
    byId("wrong").textContent = asCount(point.errors);
    byId("risk").textContent = asRisk(point);
    byId("threshold").textContent = asThreshold(point);
    byId("guarantee").textContent = guaranteesentence(shown());
  }

  function guaranteesentence(method) {
    if (method.no_guarantee) return `No guarantee: ${method.no_guarantee}`;
    const certainty = asPercent(1 - page.delta, 6);
    const guaranteed = guaranteeAt(method, Number(tolerated.value));
    if (guaranteed) {
      return (
        `Certified: with ${certainty} certainty at most ${asPercent(risk(), 6)} of the accepted answers are wrong, on new images like these, when accepting from ` +
        `${asThreshold(guaranteed)}. Of the images here that accepts ${asCount(guaranteed.accepted)} (${asPercent(guaranteed.accepted / page.images, 1)}), ${asCount(guaranteed.errors)} of them wrong.`
      );
    }
    const possible = method.guarantees.accepted.findIndex((count) => count > 0);
    const least = possible < 0 ? "no risk on this slider can be" : `${asPercent(page.risks[possible], 6)} is the least that can be`;
    return `Not certified: ${asPercent(risk(), 6)} risk cannot be guaranteed with ${certainty} certainty from ${asCount(page.images)} images; ${least}.`;
  }

  function tellRow(method) {
    const point = pointFor(method);
    const guaranteed = guaranteeAt(method, Number(tolerated.value));
    const row = rows.get(method.name);
    const values = [
      asThreshold(point),
      `${asCount(point.accepted)} (${asPercent(point.accepted / page.images, 1)})`,
      asCount(page.images - point.accepted),
      asCount(point.errors),
      asRisk(point),
      guaranteed ? `${asCount(guaranteed.accepted)} (${asPercent(guaranteed.accepted / page.images, 1)})` : "none",
    ];
    row.classList.toggle("shown", method === shown());
    values.forEach((value, column) => (row.cells[column + 1].textContent = value));
  }

  function update() {
    const point = pointFor(shown());
    follow(point);
    tell(point);
    page.methods.forEach(tellRow);
    plots.risk.move(point);
    plots.histogram.move(point.threshold);
  }

  function choose() {
    plots.histogram.show(shown());
    plots.reliability.show(shown());
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
  choice.addEventListener("change", choose);
  for (const method of page.methods) rows.get(method.name).querySelector(".key").style.color = color(method.place);
  tolerated.value = page.risks.indexOf(page.risk);
  choose();
}
