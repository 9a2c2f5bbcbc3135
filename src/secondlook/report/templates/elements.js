// Making elements; text always goes in as text, so that a class with angle brackets is only a name.
const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const html = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);
const byId = (id) => document.getElementById(id);
const color = (place) => `var(--m${place % 8})`;
const dashes = (place) => (place < 8 ? "none" : "6 3");
