// Loaded after timeline.js: one scale for the error rate among accepted images: guaranteed, audited and estimated, with the limit drawn.
const SCALE_ROWS = 3;
const GUARANTEED = 2;
const SCALE_COLORS = [GUARANTEED, AUDITED, ESTIMATED];
const SCALE_CHARTS = new WeakMap();

// What one row says in words, its bar from `low` to `high`, and its best single value.
function describeScaleRows({ guaranteed, audited, estimated }) {
  const between = (low, high) => `${formatPercent(low)} to ${formatPercent(high)}`;
  const labels = audited?.labels ?? 0;
  const counted = `${formatCount(labels)} ${labels === 1 ? "label" : "labels"}`;
  const isChecked = labels > 0 && audited.high - audited.low < 0.9995;
  const interval = estimated?.low != null ? ` (${between(estimated.low, estimated.high)})` : "";
  return [
    { name: "Guaranteed", text: guaranteed === null ? "none" : `at most ${formatPercent(guaranteed)}`, low: 0, high: guaranteed },
    isChecked
      ? { name: "Audited", text: `${between(audited.low, audited.high)}, from ${counted}`, low: audited.low, high: audited.high, value: audited.estimate }
      : { name: "Audited", text: `not checked yet${labels ? `: ${counted} ${labels === 1 ? "is" : "are"} too few` : ""}` },
    estimated === null
      ? { name: "Estimated", text: "unknown" }
      : { name: "Estimated", text: `${formatPercent(estimated.value)}${interval}, without labels`, low: estimated.low, high: estimated.high, value: estimated.value },
  ];
}

// The end of the axis: a wide interval may exceed it, but never shrinks the limit to nothing.
function endOfScale(limit, rows) {
  const known = rows.flatMap(({ low, high, value }, row) => [low, value, row === 1 ? null : high]).filter((one) => one != null);
  const inner = 1.4 * Math.max(limit ?? 0, ...known, 0.001);
  return Math.min(1, Math.max(inner, Math.min(1.1 * (rows[1].high ?? 0), 3 * inner)));
}

function drawScaleRow(chart, { name, text, low, high, value }, row) {
  const color = methodColor(SCALE_COLORS[row]);
  const y = chart.y(SCALE_ROWS - row - 0.65);
  if (low != null && high != null) {
    const [left, right] = [chart.x(low), chart.x(high)];
    chart.area.append(svg("rect", { class: "scale-bar", fill: color, x: left, y: y - 5, width: Math.max(right - left, 2), height: 10 }));
    if (right > chart.right + 1) chart.over.append(svg("path", { fill: color, d: `M${chart.right} ${y - 8}l10 8l-10 8Z` }));
  }
  if (value != null) chart.over.append(methodMarker(SCALE_COLORS[row], chart.x(value), y));
  chart.over.append(svg("text", { class: "scale-label", x: chart.left, y: y - 12 }, svg("tspan", { class: "strong" }, name), ` ${text}`));
}

// `audited` is {low, high, estimate, labels}, `estimated` {value, low, high}; either is null if unknown.
function drawRiskScale(figure, { limit, guaranteed, audited, estimated }) {
  const rows = describeScaleRows({ guaranteed, audited, estimated });
  const spec = {
    height: 200,
    left: 8,
    x: { min: 0, max: endOfScale(limit, rows), label: "error rate among accepted images", format: (v) => formatPercent(v, 3) },
    y: { min: 0, max: SCALE_ROWS + 0.4, ticks: [], label: "", format: String },
    draw(chart) {
      if (limit !== null) {
        const x = chart.x(limit);
        chart.area.append(svg("line", { class: "limit", x1: x, x2: x, y1: chart.top, y2: chart.bottom }));
        chart.over.append(svg("text", { class: "alert", x: x + 6, y: chart.top + 6 }, `limit ${formatPercent(limit)}`));
      }
      rows.forEach((one, row) => drawScaleRow(chart, one, row));
    },
  };
  figure.classList.add("risk-scale");
  figure.setAttribute("role", "img");
  figure.setAttribute("aria-label", `${rows.map(({ name, text }) => `${name}: ${text}.`).join(" ")}${limit === null ? "" : ` Limit: ${formatPercent(limit)}.`}`);
  const chart = SCALE_CHARTS.get(figure);
  if (chart) chart.spec = spec;
  else SCALE_CHARTS.set(figure, new Chart(figure, spec));
  SCALE_CHARTS.get(figure).redraw();
}
