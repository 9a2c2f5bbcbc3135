// Elements, and a chart in SVG: axes, a clipped drawing area, and scales that follow the width of the page.
const SVG = "http://www.w3.org/2000/svg";

// Children are appended as text, so that a class name with angle brackets cannot become markup.
function fillElement(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const html = (name, attributes = {}, ...children) => fillElement(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fillElement(document.createElementNS(SVG, name), attributes, children);
const byId = (id) => document.getElementById(id);
const methodColor = (index) => `var(--m${index % 8})`;
const methodDashes = (index) => (index < 8 ? "none" : "6 3");

const MARGIN = { top: 12, right: 14, bottom: 42, left: 54 };

function roundStep(span, maxSteps) {
  const raw = span / maxSteps;
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((digit) => digit * power >= raw * (1 - 1e-9));
}

function ticks(min, max, maxTicks) {
  const step = roundStep(max - min, maxTicks);
  const values = [];
  for (let i = Math.ceil(min / step - 1e-9); i * step <= max + step * 1e-9; i++) values.push(i * step);
  return values;
}

// `spec`: {height, x: {min, max, label, format}, y: {...}, draw(chart)}; `draw` adds to chart.area.
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
  }

  fittingWidth() {
    return Math.max(this.figure.clientWidth, 240);
  }

  redraw() {
    const { height } = this.spec;
    const width = this.fittingWidth();
    this.width = width;
    this.root.setAttribute("height", height);
    this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.left = MARGIN.left;
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
      svg("text", { transform: `translate(12 ${middle}) rotate(-90)`, "text-anchor": "middle" }, y.label),
    );
    return group;
  }
}
