// Decisions at an operating point: a summary sentence, and counts by true and predicted class.
function pluralize(count, noun) {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

// The same sentence as in Python.
function describeDecisions(page, { accepted, errors }) {
  const rejected = page.images - accepted;
  const first =
    `Of ${pluralize(page.images, "image")}, ${formatCount(accepted)} can be accepted automatically; ` +
    `${formatCount(errors)} of those ${errors === 1 ? "was" : "were"} wrong.`;
  const review = `${formatCount(rejected)} ${rejected === 1 ? "goes" : "go"} to review`;
  if (!page.errors) return `${first} ${review}.`;
  return `${first} ${review}, with ${formatCount(page.errors - errors)} of the ${pluralize(page.errors, "error")} among them.`;
}

// Accepted images per cell (pair of true and predicted class); null if the page lacks the ranked cells.
function countAccepted(page, method, point) {
  if (point.cells) return point.cells;
  if (!method.cells) return null;
  const counts = new Uint32Array(page.cells.images.length);
  for (let i = 0; i < point.accepted; i++) counts[method.cells[i]]++;
  return counts;
}

// The sum of counts over the cells for which `test(label, predicted, correct)` is true.
function sumCells({ labels, predicted, correct }, counts, test) {
  let total = 0;
  for (let cell = 0; cell < counts.length; cell++) {
    if (test(labels[cell], predicted[cell], correct[cell] === 1)) total += counts[cell];
  }
  return total;
}
