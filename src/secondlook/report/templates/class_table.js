// The table of classes at the operating point: sortable, searchable by name, and limited in length.
const MAX_CLASS_ROWS = 50;
const CLASS_COLUMNS = [
  { title: "Class", value: (one) => one.name, format: (text) => text },
  { title: "Images", value: (one) => one.images, format: formatCount },
  { title: "Errors", value: (one) => one.errors, format: formatCount },
  { title: "Error rate %", value: (one) => one.errors / one.images, format: (share) => formatDigits(100 * share, 2) },
  { title: "Accepted %", value: (one) => one.accepted === null ? null : one.accepted / one.images, format: (share) => (100 * share).toFixed(1) },
  { title: "Errors accepted", value: (one) => one.errorsAccepted, format: formatCount },
  { title: "Errors caught", value: (one) => one.errorsAccepted === null ? null : one.errors - one.errorsAccepted, format: formatCount },
  { title: "Risk %", value: (one) => (one.accepted ? one.errorsAccepted / one.accepted : null), format: (share) => formatDigits(100 * share, 2) },
  { title: "AUROC %", value: (one) => one.auroc, format: (share) => (100 * share).toFixed(2) },
];

// Images and errors per class, from counts per cell.
function countPerClass(page, counts) {
  const { labels, correct } = page.cells;
  const [images, errors] = [new Uint32Array(page.classes.length), new Uint32Array(page.classes.length)];
  for (let cell = 0; cell < labels.length; cell++) {
    images[labels[cell]] += counts[cell];
    if (!correct[cell]) errors[labels[cell]] += counts[cell];
  }
  return { images, errors };
}

function classSection(page) {
  const search = byId("class-search");
  const headings = CLASS_COLUMNS.map(({ title }, column) => {
    const heading = html("th", { scope: "col", class: column ? "n" : "", "aria-sort": "none" }, html("button", { type: "button" }, title));
    heading.firstChild.addEventListener("click", () => sortBy(column));
    return heading;
  });
  const [caption, body] = [html("caption"), html("tbody")];
  const all = countPerClass(page, page.cells.images);
  const labels = [...new Set(page.cells.labels)];
  const classes = labels.length;
  let shown = null;
  let sorted = classes > MAX_CLASS_ROWS ? { column: 2, direction: -1 } : null;

  function sortBy(column) {
    const first = column === 0 ? 1 : -1;
    sorted = { column, direction: sorted?.column === column ? -sorted.direction : first };
    fill();
  }

  function createRow() {
    return html("tr", {}, html("th", { scope: "row" }), ...CLASS_COLUMNS.slice(1).map(() => html("td", { class: "n" })));
  }

  function texts(one) {
    return CLASS_COLUMNS.map(({ value, format }) => {
      const content = value(one);
      return content === null ? "–" : format(content);
    });
  }

  function fill() {
    const { method, accepted } = shown;
    const wanted = search.value.trim().toLowerCase();
    const among = accepted && countPerClass(page, accepted);
    const rows = labels
      .filter((label) => !wanted || page.classes[label].toLowerCase().includes(wanted))
      .map((label) => ({
        name: page.classes[label],
        images: all.images[label],
        errors: all.errors[label],
        accepted: among && among.images[label],
        errorsAccepted: among && among.errors[label],
        auroc: Number.isNaN(method.class_aurocs[label]) ? null : method.class_aurocs[label],
      }));
    if (sorted) {
      const { value } = CLASS_COLUMNS[sorted.column];
      rows.sort((one, other) => compareKeys(value(one), value(other), sorted.direction));
    }
    const direction = (column) => (sorted?.column !== column ? "none" : sorted.direction > 0 ? "ascending" : "descending");
    headings.forEach((heading, column) => heading.setAttribute("aria-sort", direction(column)));
    fillRows(body, rows.slice(0, MAX_CLASS_ROWS).map(texts), createRow);
    const visible = Math.min(rows.length, MAX_CLASS_ROWS);
    const order = sorted ? `, by ${CLASS_COLUMNS[sorted.column].title.replace(" %", "").toLowerCase()}` : "";
    caption.textContent = `${visible < classes ? `${visible} of ` : ""}${formatCount(classes)} ${classes === 1 ? "class" : "classes"}${order}`;
    byId("class-note").textContent = `Images by true class; accepted by ${method.words} at the operating point selected above.`;
  }

  function update(decisions) {
    shown = decisions;
    fill();
  }

  byId("class-table").replaceChildren(caption, html("thead", {}, html("tr", {}, ...headings)), body);
  byId("class-search-field").hidden = classes <= MAX_CLASS_ROWS;
  search.addEventListener("input", fill);
  return { update };
}
