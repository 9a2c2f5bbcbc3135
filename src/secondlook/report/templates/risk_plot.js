// Risk over coverage: every method with its band, the perfect and the worst order, and the point that is chosen.
const TOP_OF_RISK = 1.5;

function riskPlot(figure, reading, page) {
  const rate = page.errors / page.images;
  const top = Math.min(1, Math.max(TOP_OF_RISK * rate, 0.01));
  let marker = null;
  let cross = null;
  let chosen = null;
  let readAt = null;

  const chart = new Chart(figure, {
    height: window.innerWidth < 600 ? 320 : 430,
    x: { min: 0, max: 1, label: "coverage: share of the answers that are accepted", format: (v) => asPercent(v, 0) },
    y: { min: 0, max: top, label: "risk: errors among the accepted", format: (v) => asPercent(v, 3) },
    draw(chart) {
      drawReferences(chart, page);
      for (const method of page.methods) drawBand(chart, method);
      for (const method of page.methods) drawCurve(chart, method, page.images);
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
    const parts = page.methods.map((method) => {
      const band = nearestPlace(method.curve.band_coverage, readAt / page.images);
      const ends = `${asPercent(method.curve.low[band])} to ${asPercent(method.curve.high[band])}`;
      return html("span", {}, key(method), `${method.name} ${asPercent(riskAmong(method, readAt))} (${ends})`);
    });
    reading.replaceChildren(html("span", {}, `at ${asPercent(readAt / page.images, 1)} coverage, risk of`), ...parts);
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
  const shares = Array.from({ length: 400 }, (_, i) => (i + 1) / 400);
  const perfect = shares.map((share) => Math.max(0, 1 - (1 - rate) / share));
  const worst = shares.map((share) => Math.min(1, rate / share));
  for (const [name, risks] of [["perfect", perfect], ["worst", worst]]) {
    chart.area.append(svg("path", { class: "reference", d: chart.path(shares, risks), "data-order": name }));
  }
  if (rate === 0) return;
  const { max } = chart.spec.y;
  const shown = Math.min(1, rate / (0.92 * max));
  chart.over.append(
    svg("text", { x: chart.x(shown) - 8, y: chart.y(0.92 * max) + 12, "text-anchor": "end" }, "worst"),
    svg("text", { x: chart.x(1) - 4, y: chart.y(0) - 6, "text-anchor": "end" }, "perfect"),
  );
}

function drawBand(chart, method) {
  const { band_coverage: shares, low, high } = method.curve;
  const back = chart.path(Array.from(shares).reverse(), Array.from(low).reverse()).replace("M", "L");
  chart.area.append(svg("path", { class: "band", fill: color(method.place), d: `${chart.path(shares, high)}${back}Z` }));
}

function drawCurve(chart, method, images) {
  const shares = Float64Array.from(method.curve.accepted, (n) => n / images);
  const style = { stroke: color(method.place), "stroke-dasharray": dashes(method.place) };
  chart.area.append(svg("path", { class: "curve", ...style, d: chart.path(shares, method.curve.risk) }));
}

function key(method) {
  const mark = html("i", { class: "key" });
  mark.style.color = color(method.place);
  return mark;
}

function legend(methods) {
  return html("ul", { class: "legend" }, ...methods.map((method) => html("li", {}, key(method), method.name)));
}
