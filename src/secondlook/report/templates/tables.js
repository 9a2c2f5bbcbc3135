// Sortable tables, and tables that scroll sideways.

// Numbers compare as numbers; missing ones sort last in both directions.
function sortKey(cell) {
  const text = cell.textContent.trim();
  if (cell.tagName === "TH") return text;
  const number = Number(text.replaceAll(",", "").split(" ")[0]);
  return text === "–" || Number.isNaN(number) ? null : number;
}

function compareKeys(first, second, direction) {
  if (first === null || second === null) return (first === null) - (second === null);
  const order = typeof first === "string" ? first.localeCompare(second, "en", { numeric: true }) : first - second;
  return direction * order;
}

function makeSortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const [first, second] = column === 0 ? ["ascending", "descending"] : ["descending", "ascending"];
      const order = heading.getAttribute("aria-sort") === first ? second : first;
      headings.forEach((other) => other.setAttribute("aria-sort", other === heading ? order : "none"));
      const direction = order === "ascending" ? 1 : -1;
      const rows = [...table.tBodies[0].rows].map((row) => [sortKey(row.cells[column]), row]);
      rows.sort((one, other) => compareKeys(one[0], other[0], direction));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}

// Adds a hint to tables that scroll sideways, since phones hide scroll bars.
function markOverflow(box) {
  const hint = html("p", { class: "scroll-hint", "aria-hidden": "true" }, "Scroll sideways for more columns →");
  box.before(hint);
  const update = () => {
    const overflows = box.scrollWidth > box.clientWidth + 1;
    hint.hidden = !overflows;
    box.classList.toggle("overflows", overflows && box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  const observer = new ResizeObserver(update);
  for (const element of [box, box.firstElementChild]) observer.observe(element);
  box.addEventListener("scroll", update, { passive: true });
  update();
}
