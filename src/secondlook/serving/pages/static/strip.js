// The last labels of the reviewer, to look at again and correct.
"use strict";
function makeStrip({ nameOf, onOpen }) {
  const { find, make, titleOf } = elements;
  const MOST = 10;
  const labels = new Map(); // number -> { item, label }, latest last; labels are classes, or texts of other answers

  const section = find("strip"); // absent while labeling for a policy

  function render() {
    if (!section) return;
    const latest = [...labels.values()].slice(-MOST).reverse();
    section.hidden = !latest.length;
    find("strip-list").replaceChildren(...latest.map((one) => make("li", {}, makeButton(one))));
  }

  function makeButton({ item, label }) {
    const text = nameOf(label);
    const picture = item.image ? make("img", { src: `/v1/review/${item.number}/image`, alt: "" }) : "";
    const button = make("button", { type: "button", className: "label", title: titleOf(item) }, picture, make("span", { textContent: text }));
    button.setAttribute("aria-label", `${titleOf(item)}, labeled ${text}. Open to correct it.`);
    button.addEventListener("click", () => onOpen(item));
    return button;
  }

  function add(item, label) {
    labels.delete(item.number);
    labels.set(item.number, { item, label });
    render();
  }

  function remove(number) {
    if (labels.delete(number)) render();
  }

  function correct(number, label) {
    if (labels.has(number)) labels.get(number).label = label;
    render();
  }

  // Labels of earlier visits.
  async function load() {
    if (!section) return;
    const { items } = await server.get(`/v1/review/items?state=all&reviewer=me&limit=${MOST}`).catch(() => ({ items: [] }));
    const later = [...labels];
    labels.clear();
    for (const item of items.filter((one) => one.label !== null).reverse()) labels.set(item.number, { item, label: item.class ?? item.label });
    for (const [number, one] of later) labels.set(number, one);
    render();
  }

  return { add, remove, correct, load };
}
