// Example images: each opens all of its views, with the prediction for each.
const SMALL_SIDE = 64;

function createPicture(source, description) {
  const image = html("img", { src: source, alt: description });
  image.addEventListener("load", () => image.classList.toggle("small-picture", image.naturalWidth < SMALL_SIDE));
  return image;
}

function verdict(one) {
  return html("span", { class: one.correct ? "correct" : "wrong" }, one.correct ? "✓ correct" : "✗ wrong");
}

function describeChange({ rank_changes: changes, now_accepted: accepted }, position) {
  const ranks = changes[position];
  const moved = `${ranks > 0 ? "up" : "down"} ${formatCount(Math.abs(ranks))} rank${Math.abs(ranks) === 1 ? "" : "s"}`;
  return html("small", {}, `${accepted[position] ? "now accepted" : "now rejected"}: ${moved}`);
}

function imageTile(gallery, position, page) {
  const one = page.pictures[gallery.images[position]];
  const predicted = one.predicted.join(", ");
  const confidences = page.compared.map((name) => `${name} ${formatConfidence(one.confidences[name])}`);
  const lines = [
    html("small", {}, html("b", {}, predicted)),
    html("small", {}, verdict(one)),
    ...(one.correct ? [] : [html("small", {}, `label: ${one.label}`)]),
    ...confidences.map((text) => html("small", {}, text)),
  ];
  if (gallery.rank_changes) lines.push(describeChange(gallery, position));
  const button = html("button", { type: "button" }, createPicture(one.views[0].picture, `${one.id}: predicted ${predicted}, label ${one.label}`), ...lines);
  button.addEventListener("click", () => openViews(one, page));
  return html("li", {}, button);
}

function viewTile(view) {
  return html(
    "li",
    {},
    html(
      "div",
      { class: view.agrees ? "tile" : "tile differs" },
      createPicture(view.picture, `view ${view.text}: predicted ${view.predicted}`),
      html("small", {}, html("b", {}, view.predicted), ` ${formatPercent(view.probability, 1)}`),
      html("small", {}, view.text),
    ),
  );
}

function openViews(one, page) {
  const differing = one.views.filter((view) => !view.agrees).length;
  const confidences = page.methods.map(({ name }) => `${name} ${formatConfidence(one.confidences[name])}`).join(", ");
  byId("dialog-title").textContent = one.id;
  byId("dialog-summary").replaceChildren(
    `Predicted ${one.predicted.join(", ")}: `,
    verdict(one),
    one.correct ? ". " : `, label: ${one.label}. `,
    `${differing} of ${one.views.length} views have a different predicted class. Confidence: ${confidences}.`,
  );
  byId("dialog-views").replaceChildren(...one.views.map(viewTile));
  byId("views-dialog").showModal();
}

function fillGalleries(page) {
  for (const gallery of page.galleries) {
    const tiles = gallery.images.map((_, position) => imageTile(gallery, position, page));
    byId(`gallery-${gallery.name}`).append(...tiles);
  }
  byId("views-dialog").addEventListener("click", (event) => {
    if (event.target === event.currentTarget) event.currentTarget.close();
  });
}
