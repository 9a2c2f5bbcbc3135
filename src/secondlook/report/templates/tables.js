// Tables that are sorted by a click on a heading; numbers as numbers, missing ones last either way.
function sortValue(cell) {
  const text = cell.textContent.trim();
  const number = Number(text.replaceAll(",", "").split(" ")[0]);
  return cell.tagName === "TH" ? text : text === "–" || Number.isNaN(number) ? null : number;
}

function compared(first, second, direction) {
  if (first === null || second === null) return (first === null) - (second === null);
  const order = typeof first === "string" ? first.localeCompare(second, "en", { numeric: true }) : first - second;
  return direction * order;
}

function makeSortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const first = column === 0 ? "ascending" : "descending";
      const second = column === 0 ? "descending" : "ascending";
      const sorted = heading.getAttribute("aria-sort") === first ? second : first;
      headings.forEach((other) => other.setAttribute("aria-sort", other === heading ? sorted : "none"));
      const direction = sorted === "ascending" ? 1 : -1;
      const rows = [...table.tBodies[0].rows].map((row) => [sortValue(row.cells[column]), row]);
      rows.sort((one, other) => compared(one[0], other[0], direction));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}
