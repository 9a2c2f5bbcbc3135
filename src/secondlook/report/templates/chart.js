// DOM elements, and an SVG chart: axes, a clipped drawing area, and scales that follow the page width.
const SVG = "http://www.w3.org/2000/svg";

// Strings are appended as text, so a class name with angle brackets cannot become markup.
function fillElement(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const html = (name, attributes = {}, ...children) => fillElement(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fillElement(document.createElementNS(SVG, name), attributes, children);

// Fills table rows with texts. Keeps the rows and sets only changed texts, to be fast while a slider moves.
function fillRows(body, lines, createRow) {
  while (body.rows.length > lines.length) body.lastChild.remove();
  while (body.rows.length < lines.length) body.append(createRow());
  lines.forEach((texts, row) => {
    const { cells } = body.rows[row];
    texts.forEach((text, column) => {
      if (cells[column].textContent !== text) cells[column].textContent = text;
    });
  });
}

const byId = (id) => document.getElementById(id);
const methodColor = (index) => `var(--m${index % 8})`;
// Dashes and markers distinguish curves without colors; their cycle lengths have no common factor.
const DASHES = ["none", "9 4", "9 3 2 3", "2 2.5"];
const MARKERS = [
  "M-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0 -8.4 0Z",
  "M-3.8 -3.8H3.8V3.8H-3.8Z",
  "M0 -5L4.8 3.6H-4.8Z",
  "M0 -5.4L5.4 0L0 5.4L-5.4 0Z",
  "M0 5L4.8 -3.6H-4.8Z",
];
const methodDashes = (index) => DASHES[index % DASHES.length];

function methodMarker(index, x, y) {
  return svg("path", { class: "point", d: MARKERS[index % MARKERS.length], fill: methodColor(index), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
}

// A sample of a method's curve, for legends and tables.
function key(method) {
  const line = svg("line", { x1: 1, x2: 39, y1: 7, y2: 7, stroke: methodColor(method.index), "stroke-width": 2, "stroke-dasharray": methodDashes(method.index) });
  return svg("svg", { class: "key", viewBox: "0 0 40 14", width: 40, height: 14, "aria-hidden": "true" }, line, methodMarker(method.index, 20, 7));
}

const PAPER_WIDTH = 800;
const MARGIN = { top: 12, right: 22, bottom: 42, left: 68 };

function roundStep(span, maxSteps) {
  const raw = span / maxSteps;
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((digit) => digit * power >= raw * (1 - 1e-9));
}

function ticks(min, max, maxTicks) {
  const step = roundStep(max - min, maxTicks);
  const values = [];
  for (let i = Math.ceil(min / step - 1e-9); i * step <= max + step * 1e-9; i++) values.push(i * step || 0); // not -0
  return values;
}

// `spec`: {height, left, x: {min, max, label, format}, y: {...}, draw(chart)}; `draw` adds to chart.area; `left` is optional.
class Chart {
  constructor(figure, spec) {
    this.figure = figure;
    this.spec = spec;
    this.root = svg("svg", { "aria-hidden": "true" });
    figure.replaceChildren(this.root);
    this.clip = `clip-${figure.id}`;
    new ResizeObserver(() => {
      if (this.width !== this.fittingWidth()) this.redraw();
    }).observe(figure);
    // Plots are narrower on paper: drawn for that width, their text matches the surrounding text.
    window.addEventListener("beforeprint", () => this.redraw(PAPER_WIDTH / byId("main").clientWidth));
    window.addEventListener("afterprint", () => this.redraw());
  }

  fittingWidth() {
    return Math.max(this.figure.clientWidth, 240);
  }

  redraw(scale = 1) {
    const height = scale < 1 ? 0.75 * this.spec.height : this.spec.height;
    const width = this.fittingWidth() * Math.min(1, scale);
    this.width = width;
    this.root.setAttribute("height", height);
    this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.left = this.spec.left ?? MARGIN.left;
    this.right = width - MARGIN.right;
    this.top = MARGIN.top;
    this.bottom = height - MARGIN.bottom;
    this.area = svg("g", { "clip-path": `url(#${this.clip})` });
    const frame = { x: this.left, y: this.top, width: this.right - this.left, height: this.bottom - this.top };
    const clip = svg("defs", {}, svg("clipPath", { id: this.clip }, svg("rect", frame)));
    this.over = svg("g");
    this.root.replaceChildren(clip, this.axes(), this.area, this.over);
    this.spec.draw(this);
  }

  x(value) {
    const { min, max } = this.spec.x;
    return this.left + ((value - min) / (max - min)) * (this.right - this.left);
  }

  y(value) {
    const { min, max } = this.spec.y;
    return this.bottom - ((value - min) / (max - min)) * (this.bottom - this.top);
  }

  valueAt(clientX) {
    const { min, max } = this.spec.x;
    const at = clientX - this.root.getBoundingClientRect().left;
    return min + ((at - this.left) / (this.right - this.left)) * (max - min);
  }

  path(xs, ys) {
    let text = "";
    for (let i = 0; i < xs.length; i++) text += `${i ? "L" : "M"}${this.x(xs[i]).toFixed(1)} ${this.y(ys[i]).toFixed(1)}`;
    return text;
  }

  axes() {
    const { x, y } = this.spec;
    const group = svg("g");
    for (const value of x.ticks ?? ticks(x.min, x.max, this.width < 500 ? 5 : 10)) {
      const at = this.x(value);
      group.append(svg("text", { x: at, y: this.bottom + 18, "text-anchor": "middle" }, x.format(value)));
    }
    for (const value of y.ticks ?? ticks(y.min, y.max, 6)) {
      const at = this.y(value);
      group.append(
        svg("line", { class: "grid", x1: this.left, x2: this.right, y1: at, y2: at }),
        svg("text", { x: this.left - 8, y: at + 4, "text-anchor": "end" }, y.format(value)),
      );
    }
    const middle = (this.top + this.bottom) / 2;
    group.append(
      svg("line", { class: "axis", x1: this.left, x2: this.right, y1: this.y(Math.max(y.min, 0)), y2: this.y(Math.max(y.min, 0)) }),
      svg("text", { x: (this.left + this.right) / 2, y: this.bottom + 36, "text-anchor": "middle" }, x.label),
      ...(y.label ? [svg("text", { transform: `translate(12 ${middle}) rotate(-90)`, "text-anchor": "middle" }, y.label)] : []),
    );
    return group;
  }
}
