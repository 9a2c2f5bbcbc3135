// Risk over coverage: every method with its band, the perfect and the worst ranking, and the chosen operating point.
const RISK_AXIS_FACTOR = 1.5;
const MARKER_SPACING = 0.12;

function riskPlot(figure, reading, page) {
  const rate = page.errors / page.images;
  const top = Math.min(1, Math.max(RISK_AXIS_FACTOR * rate, 0.01));
  let marker = null;
  let cross = null;
  let chosen = null;
  let readAt = null;

  const chart = new Chart(figure, {
    height: window.innerWidth < 600 ? 320 : 430,
    x: { min: 0, max: 1, label: "coverage: fraction of predictions accepted", format: (v) => formatPercent(v, 0) },
    y: { min: 0, max: top, label: "risk: error rate among accepted", format: (v) => formatPercent(v, 3) },
    draw(chart) {
      drawReferences(chart, page);
      for (const method of page.methods) drawBand(chart, method);
      for (const method of page.methods) drawCurve(chart, method, page);
      cross = svg("line", { class: "cross", y1: chart.top, y2: chart.bottom, visibility: "hidden" });
      marker = svg("g", { class: "marker" }, svg("line", { y1: chart.top, y2: chart.bottom }), svg("circle", { r: 6 }));
      chart.over.append(cross, marker);
      if (chosen) move(chosen);
    },
  });
  figure.append(legend(page.methods));
  chart.redraw();

  function move(point) {
    chosen = point;
    const risk = point.accepted ? point.errors / point.accepted : 0;
    marker.setAttribute("transform", `translate(${chart.x(point.accepted / page.images).toFixed(1)} 0)`);
    marker.lastChild.setAttribute("cy", Math.max(chart.top, chart.y(risk)).toFixed(1));
  }

  function read(accepted) {
    readAt = Math.max(1, Math.min(page.images, Math.round(accepted)));
    const at = chart.x(readAt / page.images);
    cross.setAttribute("x1", at);
    cross.setAttribute("x2", at);
    cross.setAttribute("visibility", "visible");
    const readings = page.methods.map((method) => {
      const band = nearestIndex(method.curve.band_coverage, readAt / page.images);
      const ends = `${formatPercent(method.curve.low[band])} to ${formatPercent(method.curve.high[band])}`;
      return html("span", {}, key(method), `${method.words} ${formatPercent(interpolateRisk(method, readAt))} (${ends})`);
    });
    reading.replaceChildren(html("span", {}, `Risk at ${formatPercent(readAt / page.images, 1)} coverage:`), ...readings);
  }

  figure.addEventListener("pointermove", (event) => read(chart.valueAt(event.clientX) * page.images));
  figure.addEventListener("pointerleave", () => cross.setAttribute("visibility", "hidden"));
  figure.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -0.01, ArrowRight: 0.01, PageDown: -0.1, PageUp: 0.1 }[event.key];
    if (!steps) return;
    event.preventDefault();
    read((readAt ?? chosen.accepted) + steps * page.images);
  });
  return { move };
}

function drawReferences(chart, page) {
  const rate = page.errors / page.images;
  const coverages = Array.from({ length: 400 }, (_, i) => (i + 1) / 400);
  const perfect = coverages.map((coverage) => Math.max(0, 1 - (1 - rate) / coverage));
  const worst = coverages.map((coverage) => Math.min(1, rate / coverage));
  for (const [name, risks] of [["perfect", perfect], ["worst", worst]]) {
    chart.area.append(svg("path", { class: "reference", d: chart.path(coverages, risks), "data-ranking": name }));
  }
  if (rate === 0) return;
  const { max } = chart.spec.y;
  const labelAt = Math.min(1, rate / (0.92 * max));
  chart.over.append(
    svg("text", { x: chart.x(labelAt) - 8, y: chart.y(0.92 * max) + 12, "text-anchor": "end" }, "worst"),
    svg("text", { x: chart.x(1) - 4, y: chart.y(0) - 6, "text-anchor": "end" }, "perfect"),
  );
}

function drawBand(chart, method) {
  const { band_coverage: coverages, low, high } = method.curve;
  const back = chart.path(Array.from(coverages).reverse(), Array.from(low).reverse()).replace("M", "L");
  chart.area.append(svg("path", { class: "band", fill: methodColor(method.index), d: `${chart.path(coverages, high)}${back}Z` }));
}

function drawCurve(chart, method, page) {
  const coverages = Float64Array.from(method.curve.accepted, (n) => n / page.images);
  const style = { stroke: methodColor(method.index), "stroke-dasharray": methodDashes(method.index) };
  chart.area.append(svg("path", { class: "curve", ...style, d: chart.path(coverages, method.curve.risk) }));
  // Shift the markers, so that coinciding curves remain visible.
  const first = 0.04 + (MARKER_SPACING * method.index) / page.methods.length;
  for (let coverage = first; coverage <= 1; coverage += MARKER_SPACING) {
    const nearest = nearestIndex(coverages, coverage);
    chart.area.append(methodMarker(method.index, chart.x(coverages[nearest]), chart.y(method.curve.risk[nearest])));
  }
}

function legend(methods) {
  return html("ul", { class: "legend" }, ...methods.map((method) => html("li", {}, key(method), html("b", {}, method.words))));
}
