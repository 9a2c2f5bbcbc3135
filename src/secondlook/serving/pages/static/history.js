// The history page: search for images, and open one to see and correct its labels.
"use strict";
(() => {
  const { find, make, plural, titleOf, timeOf } = elements;
  const form = find("filters"), list = find("items"), more = find("more");
  const record = makeRecord({ onCorrected: () => load() });
  let next = null, count = 0, latest = 0;

  // The filters that are set, as in the address of the page.
  const readFilters = () => new URLSearchParams([...new FormData(form)].filter(([name, value]) => value.trim() && (name !== "state" || value !== "all")));

  async function load({ append = false } = {}) {
    const request = ++latest, filters = readFilters();
    history.replaceState(null, "", `${location.pathname}${filters.size ? `?${filters}` : ""}`);
    if (append) filters.set("before", next);
    try {
      const content = await server.get(`/v1/review/items?${filters}`);
      if (request !== latest) return; // the filters have changed
      count = (append ? count : 0) + content.items.length;
      next = content.next;
      const rows = content.items.map((item) => make("li", {}, makeRow(item)));
      if (append) list.append(...rows);
      else list.replaceChildren(...rows);
      const shown = next === null ? "" : ", and more";
      find("count").textContent = count ? `${plural(count, "image", "images")}${shown}` : "No images match.";
      more.hidden = next === null;
      if (append) rows[0]?.firstChild.focus();
    } catch (error) {
      if (request === latest) find("count").textContent = describeError(error);
    }
  }

  const describeError = (error) => (server.findTrouble(error) === "logged out" ? "You are no longer logged in. Reload the page." : error.message);

  function makeRow(item) {
    const picture = item.image ? make("img", { src: `/v1/review/${item.number}/image`, alt: "", loading: "lazy" }) : "";
    const given = [item.reviewer, item.reviewed_at && timeOf(item.reviewed_at), item.audit && "audit"].filter(Boolean).join(" · ");
    const row = make(
      "button", { type: "button", className: "item" },
      make("span", { className: "thumb" }, picture),
      make("span", { className: "about" }, make("b", { textContent: titleOf(item) }), make("small", { textContent: given })),
      make("span", { className: "given" }, make("b", { textContent: item.class ?? item.label ?? "–" }), make("small", { textContent: item.state })),
    );
    if (item.comment) row.querySelector(".about").append(make("q", { textContent: item.comment }));
    row.addEventListener("click", () => record.open(item));
    return row;
  }

  let timer = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(load, 200);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    load();
  });
  more.addEventListener("click", () => load({ append: true }));

  for (const [name, value] of new URLSearchParams(location.search)) {
    const field = form.elements[name];
    if (field?.type === "checkbox") field.checked = value === field.value;
    else if (field) field.value = value;
  }
  record.loadClasses().catch(() => {}); // only suggestions are missing
  load();
})();
