// Confusion matrices of all and of accepted predictions, and the most frequent confusions.
const MATRIX_CLASSES = 12;
const LISTED_PAIRS = 10;
const NAME_LENGTH = 14;
const NAME_START = 4;

function countSharedLetters(one, other) {
  let count = 0;
  while (count < one.length && one[count] === other[count]) count++;
  return count;
}

// Names that fit the matrix. A long name that starts like another one continues with the word where they differ.
function shortenNames(names) {
  return names.map((name) => {
    if (name.length <= NAME_LENGTH) return name;
    const shared = Math.max(0, ...names.filter((other) => other !== name).map((other) => countSharedLetters(name, other)));
    if (shared < NAME_LENGTH - 2) return `${name.slice(0, NAME_LENGTH - 1)}…`;
    const room = NAME_LENGTH - NAME_START - 1;
    const word = Math.max(name.lastIndexOf(" ", shared - 1) + 1, shared - room + 2);
    const start = Math.min(word, name.length - room);
    return `${name.slice(0, NAME_START)}…${name.slice(start, start + room)}`;
  });
}

// All classes with images, or those of the most frequent confusions, in class order.
function matrixClasses(page) {
  const { labels, predicted, correct, images } = page.cells;
  const cells = [...labels.keys()].sort((one, other) => correct[one] - correct[other] || images[other] - images[one] || one - other);
  const classes = [...new Set(cells.flatMap((cell) => [labels[cell], predicted[cell]]))];
  return { chosen: classes.slice(0, MATRIX_CLASSES).sort((one, other) => one - other), total: classes.length };
}

// Counts of images by chosen label (row) and predicted class (column); a last column for all other classes.
function matrixRows(page, chosen, counts) {
  const place = new Map(chosen.map((index, row) => [index, row]));
  const rows = chosen.map(() => new Array(chosen.length + 1).fill(0));
  page.cells.labels.forEach((label, cell) => {
    if (place.has(label)) rows[place.get(label)][place.get(page.cells.predicted[cell]) ?? chosen.length] += counts[cell];
  });
  return rows;
}

function confusionSection(page) {
  const { chosen, total } = matrixClasses(page);
  const hasOthers = chosen.length < total;
  const columns = [...chosen.map((index) => page.classes[index]), ...(hasOthers ? ["other classes"] : [])];
  const shortened = shortenNames(columns);
  const pairs = [...page.cells.labels.keys()]
    .filter((cell) => !page.cells.correct[cell])
    .sort((one, other) => page.cells.images[other] - page.cells.images[one] || one - other);

  const kindOf = (row, column) => (row === column ? "right" : "wrong");

  // Shades are relative to the matrix of all predictions, so the two matrices are comparable.
  const all = matrixRows(page, chosen, page.cells.images);
  const largest = { right: 1, wrong: 1 };
  all.forEach((counts, row) => counts.forEach((count, column) => (largest[kindOf(row, column)] = Math.max(largest[kindOf(row, column)], count))));

  function showCount(cell, count, kind) {
    const text = count === null ? "–" : formatCount(count);
    if (cell.textContent === text) return;
    cell.textContent = text;
    cell.className = count ? kind : "zero";
    cell.style.setProperty("--share", count ? Math.sqrt(count / largest[kind]).toFixed(3) : "0");
  }

  // Returns a function that shows a caption and counts.
  function createMatrix(table) {
    const caption = html("caption");
    const cells = chosen.map(() => columns.map(() => html("td")));
    const heads = columns.map((name, column) => html("th", { scope: "col", title: name }, html("span", {}, shortened[column])));
    const rows = cells.map((line, row) => html("tr", {}, html("th", { scope: "row", title: columns[row] }, shortened[row]), ...line));
    const corner = html("th", { class: "corner" }, "label ↓ predicted →");
    table.replaceChildren(caption, html("thead", {}, html("tr", {}, corner, ...heads)), html("tbody", {}, ...rows));
    return (text, counts) => {
      caption.textContent = text;
      cells.forEach((line, row) => line.forEach((cell, column) => showCount(cell, counts && counts[row][column], kindOf(row, column))));
    };
  }

  // Returns a function that shows the counts of the most frequent confusions.
  function createPairs(table) {
    const heads = ["Label", "Predicted", "Errors", "Accepted", "Sent to review"].map((head, column) => html("th", { scope: "col", class: column > 1 ? "n" : "" }, head));
    const createRow = () => html("tr", {}, html("th", { scope: "row" }), html("td"), ...[1, 2, 3].map(() => html("td", { class: "n" })));
    const caption = pairs.length > LISTED_PAIRS ? `The ${LISTED_PAIRS} most frequent of ${formatCount(pairs.length)} confusions` : "All confusions";
    const body = html("tbody");
    table.replaceChildren(html("caption", {}, caption), html("thead", {}, html("tr", {}, ...heads)), body);
    return (accepted) => {
      const lines = pairs.slice(0, LISTED_PAIRS).map((cell) => {
        const images = page.cells.images[cell];
        const among = accepted ? [accepted[cell], images - accepted[cell]].map(formatCount) : ["–", "–"];
        return [page.classes[page.cells.labels[cell]], page.classes[page.cells.predicted[cell]], formatCount(images), ...among];
      });
      fillRows(body, lines, createRow);
    };
  }

  function update({ method, point, accepted }) {
    showAccepted(`Accepted: ${pluralize(point.accepted, "prediction")}`, accepted && matrixRows(page, chosen, accepted));
    showPairs(accepted);
    const limit = hasOthers
      ? ` Shown are the ${chosen.length} of ${formatCount(total)} classes with the most frequent confusions; the last column has predictions of all others.`
      : "";
    const room = accepted ? "" : ` There are too many images to count the accepted ones for ${method.words} on this page.`;
    const leading = page.top_k > 1 ? " The predicted class is the most probable one, so some predictions off the diagonal are correct." : "";
    byId("matrix-note").textContent = `Rows are true classes (labels), columns are predicted classes; numbers off the diagonal are errors.${leading}${limit}${room}`;
  }

  const showPairs = createPairs(byId("confusion-pairs"));
  const showAccepted = createMatrix(byId("matrix-accepted"));
  createMatrix(byId("matrix-all"))(`All ${pluralize(page.images, "prediction")}`, all);
  return { update };
}
