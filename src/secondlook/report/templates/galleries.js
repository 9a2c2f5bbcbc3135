// Example images in galleries that follow the operating point; each image opens all of its views.
const SMALL_SIDE = 64;
const SHOWN_AT_FIRST = 12;
const SHOWN_MORE = 48;

// `member` selects the images of a gallery, `order` sorts them, and `count` computes their number from the images and
// errors accepted at the lowest and at the selected threshold.
const GALLERIES = [
  {
    name: "errors-accepted",
    title: "Errors accepted",
    caption: "Accepted wrong predictions, most confident first. These are not reviewed.",
    member: ({ one, accepted }) => !one.correct && accepted,
    order: (one, other) => other.confidence - one.confidence,
    count: (_, { errors }) => errors,
  },
  {
    name: "errors-caught",
    title: "Errors caught",
    caption: "Wrong predictions sent to the review queue, least confident first.",
    member: ({ one, accepted }) => !one.correct && !accepted,
    order: (one, other) => one.confidence - other.confidence,
    count: (all, { errors }) => all.errors - errors,
  },
  {
    name: "correct-rejected",
    title: "Correct predictions sent to review",
    caption: "Correct predictions sent to the review queue, least confident first.",
    member: ({ one, accepted }) => one.correct && !accepted,
    order: (one, other) => one.confidence - other.confidence,
    count: (all, { accepted, errors }) => all.accepted - accepted - (all.errors - errors),
  },
  {
    name: "changed-decisions",
    title: "Decisions changed by the second look",
    member: ({ before, after }) => before !== after,
    order: (one, other) => Math.abs(other.one.rank_change) - Math.abs(one.one.rank_change),
    count: () => null,
  },
  {
    name: "unknown-accepted",
    title: "Unknown images accepted",
    caption: "Accepted images of none of the classes, most confident first.",
    member: ({ accepted }) => accepted,
    order: (one, other) => other.confidence - one.confidence,
  },
];
const UNKNOWN = "unknown-accepted";

function createPicture(source, description) {
  const image = html("img", { src: source, alt: description });
  image.addEventListener("load", () => image.classList.toggle("small-picture", image.naturalWidth < SMALL_SIDE));
  return image;
}

// Allows line breaks in a path after each folder.
function breakable(path) {
  return path.split(/(?<=[/\\])/).flatMap((part) => [part, html("wbr")]);
}

function verdict(one) {
  const text = one.correct ? "✓ correct" : one.label === null ? "✗ unknown" : "✗ wrong";
  return html("span", { class: one.correct ? "correct" : "wrong" }, text);
}

function describeChange(one, accepted) {
  const ranks = pluralize(Math.abs(one.rank_change), "rank");
  return html("small", {}, `${accepted ? "now accepted" : "now to review"}: ${one.rank_change > 0 ? "up" : "down"} ${ranks}`);
}

// A picture with its prediction, which opens its views; `notes` are additional lines.
function pictureTile(page, one, ...notes) {
  const names = one.predicted.map((index) => page.classes[index]).join(", ");
  const confidences = page.methods.filter(({ name }) => page.compared.includes(name));
  const button = html(
    "button",
    { type: "button" },
    createPicture(one.picture, `${one.id}: predicted ${names}, ${one.label === null ? "unknown" : `label ${page.classes[one.label]}`}`),
    html("small", { class: "file", title: one.id }, ...breakable(one.id)),
    html("small", {}, "predicted ", html("b", {}, names)),
    html("small", {}, verdict(one)),
    ...(one.correct || one.label === null ? [] : [html("small", {}, `label ${page.classes[one.label]}`)]),
    ...confidences.map(({ name, words, index }) => html("small", { title: name }, `${words} ${formatConfidence(one.confidences[index])}`)),
    ...notes,
  );
  button.addEventListener("click", () => openViews(one, page));
  return html("li", {}, button);
}

function gallerySection(page) {
  if (!page.pictures.length) return { update() {} };
  const filter = byId("class-filter");
  const hasGallery = ({ name }) => (name === UNKNOWN ? page.unknown_pictures.length > 0 : page.compared.length > 1 || name !== "changed-decisions");
  const galleries = GALLERIES.filter(hasGallery).map(createGallery);
  let shown = null;

  const matches = (index) => filter.value === "" || index === Number(filter.value);

  function createGallery(kind) {
    const [title, caption, list] = [html("h3"), html("p", { class: "small" }), html("ul", { class: "gallery", id: `gallery-${kind.name}` })];
    const more = html("button", { type: "button", class: "more" }, "Show more");
    const gallery = { ...kind, title, caption, kindTitle: kind.title, kindCaption: kind.caption, list, more, tiles: new Map(), shown: [], limit: SHOWN_AT_FIRST };
    more.addEventListener("click", () => {
      const first = gallery.limit;
      gallery.limit += SHOWN_MORE;
      fill(gallery);
      gallery.list.children[first]?.querySelector("button").focus();
    });
    byId(kind.name === UNKNOWN ? "unknown-gallery" : "gallery-list").append(title, caption, list, more);
    return gallery;
  }

  // Tiles are cached: moving a slider does not decode pictures again.
  function tile(gallery, { one, after }) {
    const changed = gallery.name === "changed-decisions" ? after : null;
    const key = `${one.id} ${changed}`;
    if (!gallery.tiles.has(key)) gallery.tiles.set(key, pictureTile(page, one, ...(changed === null ? [] : [describeChange(one, changed)])));
    return gallery.tiles.get(key);
  }

  function fill(gallery) {
    const isUnknown = gallery.name === UNKNOWN;
    const candidates = isUnknown ? shown.unknown : shown.images.filter(({ one }) => [one.label, ...one.predicted].some(matches));
    const members = candidates.filter(gallery.member).sort(gallery.order);
    const visible = members.slice(0, gallery.limit);
    const count = isUnknown ? countUnknown(shown.decisions.method, shown.decisions.point) : shown.counts && gallery.count(...shown.counts);
    const total = count ?? members.length;
    const unseen = count === null || members.length >= count ? "" : ` This page includes ${formatCount(members.length)} of them.`;
    gallery.title.textContent = isUnknown && count === null ? gallery.kindTitle : `${gallery.kindTitle}: ${formatCount(total)}`;
    gallery.caption.textContent = `${gallery.kindCaption ?? describeChanges()}${visible.length < total ? ` ${formatCount(visible.length)} of ${formatCount(total)} shown.` : ""}${unseen}`;
    const tiles = visible.map((entry) => tile(gallery, entry));
    if (tiles.length !== gallery.shown.length || tiles.some((one, place) => one !== gallery.shown[place])) gallery.list.replaceChildren(...tiles);
    gallery.shown = tiles;
    gallery.more.hidden = visible.length === members.length;
  }

  function describeChanges() {
    const [before, after] = page.methods.filter(({ name }) => page.compared.includes(name)).map(({ words }) => words);
    return `Images on this page that ${before} and ${after} decide differently at the same coverage; largest rank changes first.`;
  }

  function update(decisions) {
    const { method, point } = decisions;
    const [first, second] = page.compared.map((name) => page.methods.find((one) => one.name === name));
    const isPolicy = point === page.policy;
    const accepts = (one, by, at) => (at === page.policy ? one.accepted : one.confidences[by.index] >= at.threshold);
    const atSameCoverage = (by) => ((by === method && !isPolicy) || !point.accepted ? point : pointAtCoverage(by, point.accepted / page.images, page.images));
    const [before, after] = [first, second ?? first].map(atSameCoverage);
    const images = page.pictures.map((one) => ({
      one,
      confidence: one.confidences[method.index],
      accepted: accepts(one, method, point),
      before: accepts(one, first, before),
      after: accepts(one, second ?? first, after),
    }));
    const unknown = page.unknown_pictures.map((one) => ({
      one,
      confidence: one.confidences[method.index],
      accepted: (isPolicy || method.unknown !== null) && accepts(one, method, point),
    }));
    shown = { decisions, images, unknown };
    fillAll();
  }

  // Images and errors of the filtered class: all and accepted ones.
  function countFiltered({ point, accepted }) {
    if (filter.value === "") return [{ accepted: page.images, errors: page.errors }, point];
    if (!accepted) return null;
    const isInvolved = (label, predicted) => matches(label) || matches(predicted);
    return [page.cells.images, accepted].map((counts) => ({
      accepted: sumCells(page.cells, counts, isInvolved),
      errors: sumCells(page.cells, counts, (label, predicted, correct) => !correct && isInvolved(label, predicted)),
    }));
  }

  function fillAll() {
    shown.counts = countFiltered(shown.decisions);
    galleries.forEach(fill);
  }

  function fillFilter() {
    const used = new Set(page.pictures.flatMap((one) => [one.label, ...one.predicted]));
    const options = [...used].sort((one, other) => page.classes[one].localeCompare(page.classes[other], "en", { numeric: true }));
    filter.append(...options.map((index) => html("option", { value: index }, page.classes[index])));
    filter.addEventListener("change", () => {
      for (const gallery of galleries) gallery.limit = SHOWN_AT_FIRST;
      fillAll();
    });
  }

  fillFilter();
  byId("views-dialog").addEventListener("click", (event) => {
    if (event.target === event.currentTarget) event.currentTarget.close();
  });
  return { update };
}

// One view, cut out of the sheet with all views of its image.
function drawView(canvas, sheet, view, page) {
  const columns = Math.min(page.views.length, page.sheet_columns);
  const rows = Math.ceil(page.views.length / columns);
  const [width, height] = [sheet.naturalWidth / columns, sheet.naturalHeight / rows];
  canvas.width = width;
  canvas.height = height;
  canvas.classList.toggle("small-picture", width < SMALL_SIDE);
  canvas.getContext("2d").drawImage(sheet, -(view % columns) * width, -Math.floor(view / columns) * height);
}

function viewTile(one, view, sheet, page) {
  const predicted = page.classes[one.view_predicted[view]];
  const agrees = one.view_predicted[view] === one.predicted[0];
  const canvas = html("canvas", { role: "img", "aria-label": `view ${page.views[view]}: predicted ${predicted}` });
  sheet.addEventListener("load", () => drawView(canvas, sheet, view, page));
  const name = html("small", {}, html("b", {}, predicted), ` ${formatPercent(one.view_probabilities[view], 1)}`);
  const note = agrees ? [] : [html("small", { class: "wrong" }, "another class")];
  return html("li", {}, html("div", { class: agrees ? "tile" : "tile differs" }, canvas, name, html("small", {}, page.views[view]), ...note));
}

function openViews(one, page) {
  const differing = one.view_predicted.filter((predicted) => predicted !== one.predicted[0]).length;
  const confidences = page.methods.map(({ words, index }) => `${words} ${formatConfidence(one.confidences[index])}`).join(", ");
  const sheet = new Image();
  byId("dialog-title").textContent = one.id;
  byId("dialog-picture").replaceChildren(createPicture(one.picture, one.id));
  byId("dialog-summary").replaceChildren(
    `Predicted ${one.predicted.map((index) => page.classes[index]).join(", ")}: `,
    verdict(one),
    one.correct || one.label === null ? ". " : `, label: ${page.classes[one.label]}. `,
    `${differing} of ${pluralize(page.views.length, "view")} ${differing === 1 ? "has" : "have"} a different predicted class. Confidence: ${confidences}.`,
  );
  byId("dialog-views").replaceChildren(...page.views.map((_, view) => viewTile(one, view, sheet, page)));
  sheet.src = one.sheet;
  byId("views-dialog").showModal();
}
