// The timeline of a stream: all plots share the x axis and the cursor.
const ESTIMATED = 1;
const AUDITED = 3;
const MARKERS_PER_CURVE = 12;
const LETTER_WIDTH = 7;
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const KNOWN = (value) => value !== null;
const lineDashes = (color) => methodDashes(color === ESTIMATED ? 0 : color);

function formatPower(exponent) {
  if (exponent >= 0 && exponent <= 3) return formatCount(10 ** exponent);
  const digits = [...String(Math.abs(Math.round(exponent)))].map((digit) => SUPERSCRIPTS[digit]).join("");
  return `10${exponent < 0 ? "⁻" : ""}${digits}`;
}

// Formats evidence, given its logarithm.
function formatEvidence(exponent) {
  return exponent >= -2 && exponent < 5 ? formatCount(Number((10 ** exponent).toPrecision(3))) : formatPower(Math.floor(exponent));
}

const formatMean = (value) => Number(value.toPrecision(4)).toString();

// A padded range of values, within limits.
function range(values, least, most) {
  const known = values.filter(KNOWN);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const padding = Math.max(0.15 * (high - low), 0.02 * Math.max(Math.abs(low), Math.abs(high)), 1e-6);
  return { min: Math.max(least, low - padding), max: Math.min(most, high + padding) };
}

// Runs of consecutive windows with known values.
function knownRuns(windows, ...values) {
  const runs = [];
  let run = [];
  windows.forEach((_, index) => {
    if (values.every((one) => KNOWN(one[index]))) run.push(index);
    else if (run.length) runs.push(run.splice(0));
  });
  return run.length ? [...runs, run] : runs;
}

// Draws each value from the start to the end of its window.
function stepPath(chart, windows, run, values) {
  const xs = run.flatMap((index) => [windows[index].from, windows[index].to]);
  return chart.path(xs, run.flatMap((index) => [values[index], values[index]]));
}

function drawSteps(chart, windows, values, color) {
  const style = { class: "curve", stroke: methodColor(color), "stroke-dasharray": lineDashes(color) };
  for (const run of knownRuns(windows, values)) chart.area.append(svg("path", { ...style, d: stepPath(chart, windows, run, values) }));
  const every = Math.ceil(windows.length / MARKERS_PER_CURVE);
  windows.forEach((one, index) => {
    if (KNOWN(values[index]) && index % every === Math.floor(every / 2)) {
      chart.area.append(methodMarker(color, chart.x((one.from + one.to) / 2), chart.y(values[index])));
    }
  });
}

function drawBand(chart, windows, low, high, color) {
  for (const run of knownRuns(windows, low, high)) {
    const back = stepPath(chart, windows, [...run], low).slice(1).split("L").reverse().join("L");
    chart.area.append(svg("path", { class: "band", fill: methodColor(color), d: `${stepPath(chart, windows, run, high)}L${back}Z` }));
  }
}

// A horizontal line, named in the legend so that no text covers a curve.
function drawLevel(chart, value, className) {
  chart.area.append(svg("path", { class: className, d: chart.path([chart.spec.x.min, chart.spec.x.max], [value, value]) }));
}

// A plot of the page; `update` draws or redraws it.
class TimelinePlot {
  constructor(name) {
    this.figure = byId(`${name}-plot`);
    this.reading = byId(`${name}-reading`);
    this.legend = html("ul", { class: "legend" });
    this.chart = null;
  }

  // `spec` is null if there is nothing to draw.
  update(page, spec) {
    if (!spec) return;
    const { height = 260, y, series, draw, read } = spec;
    this.page = page;
    this.read = read;
    const drawn = {
      height,
      x: page.x,
      y,
      draw: (chart) => {
        draw(chart);
        this.cross = svg("line", { class: "cross", y1: chart.top, y2: chart.bottom, visibility: "hidden" });
        chart.over.append(this.cross);
      },
    };
    if (this.chart) {
      this.chart.spec = drawn;
    } else {
      this.chart = new Chart(this.figure, drawn);
      this.figure.append(this.legend);
    }
    this.legend.replaceChildren(...series.map(([kind, text]) => html("li", {}, keyOf(kind), text)));
    this.chart.redraw();
  }

  show(index) {
    if (!this.chart) return;
    const one = this.page.windows[index];
    const at = this.chart.x((one.from + one.to) / 2);
    this.cross.setAttribute("x1", at);
    this.cross.setAttribute("x2", at);
    this.cross.setAttribute("visibility", "visible");
    const texts = this.read(index).map((text) => html("span", {}, text));
    this.reading.replaceChildren(html("span", {}, `Images ${formatCount(one.start + 1)} to ${formatCount(one.start + one.images)}${this.page.describe(one)}:`), ...texts);
  }

  hide() {
    this.cross?.setAttribute("visibility", "hidden");
  }
}

// A sample of a curve for the legend, in the style of `drawSteps`, or of a level, by its class.
function keyOf(kind) {
  const ends = { x1: 1, x2: 39, y1: 7, y2: 7 };
  const parts =
    typeof kind === "string"
      ? [svg("line", { class: kind, ...ends })]
      : [svg("line", { ...ends, stroke: methodColor(kind), "stroke-width": 2, "stroke-dasharray": lineDashes(kind) }), ...(kind === AUDITED ? [] : [methodMarker(kind, 20, 7)])];
  return svg("svg", { class: "key", viewBox: "0 0 40 14", width: 40, height: 14, "aria-hidden": "true" }, ...parts);
}

function describeRange(name, low, high) {
  if (!KNOWN(low) || !KNOWN(high)) return [];
  return [`${name} ${low <= 0 && high >= 1 ? "not checked yet" : `${formatPercent(low)} to ${formatPercent(high)}`}`];
}

function riskTimeline(page) {
  const { windows, guaranteed, audit, place } = page;
  const column = (name) => windows.map((one) => one[name]);
  const [risk, low, high, auditLow, auditHigh] = ["risk", "risk_low", "risk_high", "audit_low", "audit_high"].map(column);
  // With few audits, the bounds are wide and may exceed the plot.
  const inner = Math.max(...[...risk, ...high, ...auditLow, guaranteed === null ? null : 1.6 * guaranteed, 0.005].filter(KNOWN));
  const top = audit ? Math.max(inner, Math.min(audit.high.at(-1), 2 * inner)) : inner;
  const series = [
    ...(risk.some(KNOWN) ? [[ESTIMATED, "estimated risk of each window, with an interval: an estimate, not a guarantee"]] : []),
    ...(audit ? [[AUDITED, "audited risk of all accepted images so far: lower and upper bound"]] : []),
    ...(guaranteed === null ? [] : [["limit", `guaranteed: at most ${formatPercent(guaranteed)}`]]),
  ];

  function draw(chart) {
    drawBand(chart, windows, low, high, ESTIMATED);
    if (audit) {
      const xs = audit.images.map(place);
      const back = chart.path([...xs].reverse(), [...audit.low].reverse()).replace("M", "L");
      chart.area.append(svg("path", { class: "band audited", fill: methodColor(AUDITED), d: `${chart.path(xs, audit.high)}${back}Z` }));
      for (const bound of [audit.low, audit.high]) {
        chart.area.append(svg("path", { class: "bounds", stroke: methodColor(AUDITED), "stroke-dasharray": lineDashes(AUDITED), d: chart.path(xs, bound) }));
      }
    }
    drawSteps(chart, windows, risk, ESTIMATED);
    if (guaranteed !== null) drawLevel(chart, guaranteed, "limit");
  }

  function read(index) {
    const estimate = KNOWN(risk[index]) ? [`estimated ${formatPercent(risk[index])}${KNOWN(low[index]) ? ` (${formatPercent(low[index])} to ${formatPercent(high[index])})` : ""}`] : [];
    return [...estimate, ...describeRange("audited so far", auditLow[index], auditHigh[index])];
  }

  return {
    height: 320,
    y: { min: 0, max: Math.min(1, 1.12 * top), label: "risk", format: (v) => formatPercent(v, 3) },
    series,
    draw,
    read,
  };
}

function evidenceTimeline(page) {
  const { windows, shift, place } = page;
  const known = [[windows[0].from, 0], ...windows.map((one) => [one.to, one.evidence])];
  if (shift.raised_at !== null) known.push([place(shift.raised_at), shift.limit]);
  known.sort((one, other) => one[0] - other[0]);
  const [ends, evidence] = [0, 1].map((column) => known.map((point) => point[column]));
  const [low, high] = [Math.min(...evidence, 0), Math.max(...evidence, shift.limit)];
  const span = high - low;
  const top = high + 0.12 * span;
  const marks = ticks(Math.floor(low), top, 6).filter((value) => Number.isInteger(Math.round(1e6 * value) / 1e6));

  function draw(chart) {
    chart.area.append(svg("path", { class: "curve", stroke: methodColor(ESTIMATED), d: chart.path(ends, evidence) }));
    drawLevel(chart, shift.limit, "limit");
    if (shift.raised_at === null) return;
    const x = chart.x(place(shift.raised_at));
    const text = `alarm after ${formatCount(shift.raised_at)} images`;
    // Right of the line, unless the text would leave the plot.
    const start = Math.max(chart.left + 4, Math.min(x + 8, chart.right - LETTER_WIDTH * text.length));
    chart.area.append(svg("line", { class: "raised", x1: x, x2: x, y1: chart.top, y2: chart.bottom }));
    chart.over.append(svg("text", { class: "alert", x: start, y: chart.top + 14 }, text));
  }

  return {
    y: { min: Math.min(low - 0.08 * span, marks[0]), max: top, ticks: marks, label: "evidence (log)", format: formatPower },
    series: [["limit", `limit of the alarm: ${formatEvidence(shift.limit)}`]],
    draw,
    read: (index) => [`evidence ${formatEvidence(windows[index].evidence)} at the end, limit ${formatEvidence(shift.limit)}`],
  };
}

// The mean of each window, with the mean of the calibration.
function meanTimeline(page, name, { label, most, format }) {
  const values = page.windows.map((one) => one[name]);
  const calibrated = page.calibration[name];
  if (!values.some(KNOWN)) return null;
  return {
    y: { ...range([...values, calibrated], name === "confidence" ? -Infinity : 0, most), label, format },
    series: KNOWN(calibrated) ? [["reference", `calibration: ${format(calibrated)}`]] : [],
    draw(chart) {
      drawSteps(chart, page.windows, values, ESTIMATED);
      if (KNOWN(calibrated)) drawLevel(chart, calibrated, "reference");
    },
    read: (index) => (KNOWN(values[index]) ? [`${label} ${format(values[index])}`] : ["not known"]),
  };
}

const percent = (value) => formatPercent(value, 1);
const TIMELINE = {
  risk: riskTimeline,
  evidence: evidenceTimeline,
  coverage: (page) => meanTimeline(page, "coverage", { label: "coverage", most: 1, format: percent }),
  confidence: (page) => meanTimeline(page, "confidence", { label: "mean confidence", most: Infinity, format: formatMean }),
  disagreement: (page) => meanTimeline(page, "disagreement", { label: "mean disagreement", most: 1, format: formatMean }),
  unknown: (page) => meanTimeline(page, "unknown", { label: "none of the classes", most: 1, format: percent }),
};

// Adds the x axis, the place of an image number on it, and the ends of the windows: image numbers, unless `axis` has others.
function locate(page) {
  const { place, x, describe } = page.axis ?? { place: (image) => image, x: { min: 0, max: page.images, label: "images", format: formatCount }, describe: () => "" };
  const windows = page.windows.map((one) => ({ ...one, from: place(one.start), to: place(one.start + one.images) }));
  return { ...page, place, x, describe, windows };
}

// Draws the plots of the page, and returns a function that redraws them with new data.
function startTimeline(first) {
  const plots = Object.keys(TIMELINE).filter((name) => byId(`${name}-plot`)).map((name) => [TIMELINE[name], new TimelinePlot(name)]);
  let page = first;
  let shown = Infinity;
  let isPointing = false;

  function show(index) {
    shown = Math.max(0, Math.min(page.windows.length - 1, index));
    isPointing = true;
    for (const [, plot] of plots) plot.show(shown);
  }

  function hide() {
    isPointing = false;
    for (const [, plot] of plots) plot.hide();
  }

  function update(next) {
    const isAtEnd = shown >= page.windows.length - 1;
    const wasPointing = isPointing;
    page = locate(next);
    for (const [describe, plot] of plots) plot.update(page, describe(page));
    show(isAtEnd ? Infinity : shown);
    if (!wasPointing) hide();
  }

  update(first);
  for (const [, plot] of plots) {
    plot.figure.addEventListener("pointermove", (event) => {
      const starts = page.windows.map((one) => one.from);
      if (plot.chart) show(firstAtLeast(starts, plot.chart.valueAt(event.clientX)) - 1);
    });
    plot.figure.addEventListener("pointerleave", hide);
    // Screen readers announce only the focused plot.
    plot.figure.addEventListener("focus", () => plot.reading.setAttribute("aria-live", "polite"));
    plot.figure.addEventListener("blur", () => plot.reading.removeAttribute("aria-live"));
    plot.figure.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity }[event.key];
      if (!steps) return;
      event.preventDefault();
      show(shown + steps);
    });
  }
  return update;
}
