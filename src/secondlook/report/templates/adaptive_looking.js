// Adaptive looking: certified coverage over mean looks per image, and the images with the most looks.
const LABEL_SPACE = 12;
const ADAPTIVE_COLOR = 1;

function adaptivePlot(figure, { looks, coverage, chosen, all_looks: all }) {
  const [lowest, highest] = [Math.min(...coverage, all.coverage), Math.max(...coverage, all.coverage)];
  const padding = Math.max(0.1 * (highest - lowest), 0.01);

  function draw(chart) {
    const [x, y] = [chart.x(chosen.looks), chart.y(chosen.coverage)];
    const isLeft = x < (chart.left + chart.right) / 2;
    const beside = { x: x + (isLeft ? LABEL_SPACE : -LABEL_SPACE), "text-anchor": isLeft ? "start" : "end" };
    chart.area.append(
      svg("path", { class: "reference", d: chart.path([1, all.looks], [all.coverage, all.coverage]) }),
      svg("path", { class: "curve", stroke: methodColor(ADAPTIVE_COLOR), d: chart.path(looks, coverage) }),
    );
    chart.over.append(
      ...looks.map((count, place) => methodMarker(ADAPTIVE_COLOR, chart.x(count), chart.y(coverage[place]))),
      svg("g", { class: "marker" }, svg("circle", { r: 6, cx: x, cy: y })),
      svg("text", { class: "strong", y: y + 2 * LABEL_SPACE, ...beside }, `default tolerance: ${chosen.looks.toFixed(1)} looks`),
      svg("text", { x: chart.right, y: chart.y(all.coverage) - LABEL_SPACE / 2, "text-anchor": "end" }, "all looks"),
    );
  }

  const chart = new Chart(figure, {
    height: 300,
    x: { min: 1, max: all.looks, ticks: ticks(0, all.looks - 1, 6).map((more) => 1 + more), label: "looks per image, on average", format: (v) => `${Number(v.toFixed(1))}` },
    y: { min: Math.max(0, lowest - padding), max: Math.min(1, highest + padding), label: "certified coverage", format: (v) => formatPercent(v, 1) },
    draw,
  });
  chart.redraw();
}

function adaptiveSection(page) {
  if (!page.adaptive) return;
  adaptivePlot(byId("adaptive-plot"), page.adaptive);
  const tiles = page.adaptive.most_looks.map(({ picture, looks, accepted }) => {
    const note = html("small", {}, html("b", {}, pluralize(looks, "look")), `, ${accepted ? "accepted" : "to review"}`);
    return pictureTile(page, page.pictures[picture], note);
  });
  byId("gallery-most-looks")?.append(...tiles);
}
