// Pictures: each opens to all its views, with the classifier's answer to each.
const SMALL_SIDE = 64;

function picture(source, description) {
  const image = html("img", { src: source, alt: description });
  image.addEventListener("load", () => image.classList.toggle("small-picture", image.naturalWidth < SMALL_SIDE));
  return image;
}

function verdict(one) {
  return html("span", { class: one.right ? "right-answer" : "wrong-answer" }, one.right ? "✓ right" : "✗ wrong");
}

function changed({ rank_changes: changes, now_accepted: accepted }, place) {
  const moved = changes[place] > 0 ? `rose ${asCount(changes[place])} places` : `fell ${asCount(-changes[place])} places`;
  return html("small", {}, `${accepted[place] ? "now accepted" : "now to a person"}: ${moved}`);
}

function tile(gallery, place, page) {
  const one = page.pictures[gallery.images[place]];
  const answers = one.answers.join(", ");
  const sure = page.compared.map((name) => `${name} ${asConfidence(one.confidences[name])}`);
  const lines = [
    html("small", {}, html("b", {}, answers)),
    html("small", {}, verdict(one), one.right ? "" : `, it is ${one.truth}`),
    ...sure.map((text) => html("small", {}, text)),
  ];
  if (gallery.rank_changes) lines.push(changed(gallery, place));
  const button = html("button", { type: "button" }, picture(one.views[0].picture, `${one.id}: answered ${answers}, is ${one.truth}`), ...lines);
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
      picture(view.picture, `view ${view.text}: answered ${view.answer}`),
      html("small", {}, html("b", {}, view.answer), ` ${asPercent(view.probability, 1)}`),
      html("small", {}, view.text),
    ),
  );
}

function openViews(one, page) {
  const differing = one.views.filter((view) => !view.agrees).length;
  const sure = page.methods.map(({ name }) => `${name} ${asConfidence(one.confidences[name])}`).join(", ");
  byId("dialog-title").textContent = one.id;
  byId("dialog-says").replaceChildren(
    `Answered ${one.answers.join(", ")}: `,
    verdict(one),
    one.right ? ". " : `, it is ${one.truth}. `,
    `${differing} of ${one.views.length} views are answered differently. Confidence: ${sure}.`,
  );
  byId("dialog-views").replaceChildren(...one.views.map(viewTile));
  byId("views-dialog").showModal();
}

function fillGalleries(page) {
  for (const gallery of page.galleries) {
    const tiles = gallery.images.map((_, place) => tile(gallery, place, page));
    byId(`gallery-${gallery.name}`).append(...tiles);
  }
  byId("views-dialog").addEventListener("click", (event) => {
    if (event.target === event.currentTarget) event.currentTarget.close();
  });
}
