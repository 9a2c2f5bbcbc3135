// The classes: their names and keys, and the search for one of many.
"use strict";
function makeClasses({ choose, leave }) {
  const { find, make } = elements;
  const FEW = 10; // up to this number, each class has a button and a key
  const MOST_LIKELY = 6; // suggestions if there are more classes
  const MOST_KEYS = 9;
  const MOST_RECENT = 5;
  const MOST_FOUND = 8;
  const TALLEST_LIST = 360;
  const STORAGE_KEY = "secondlook.classes";
  const query = find("query"), found = find("found");
  const chosen = new Map(elements.recall("sessionStorage", STORAGE_KEY, [])); // time of the last choice of each class, first chosen first
  let names = null; // of all classes, if known

  const nameOf = (label) => (typeof label === "string" ? label : names?.[label] ?? `class ${label}`);
  const hasFew = () => names !== null && names.length <= FEW;
  const listKeyed = () => (hasFew() ? [...names.keys()] : [...chosen.keys()].slice(0, MOST_KEYS));

  // A key means the same class on every image: its digit if all names are digits, otherwise its place. Of many classes, the
  // first ones that the reviewer chooses get the keys.
  function keyOf(label) {
    const place = listKeyed().indexOf(label);
    if (place < 0) return null;
    return hasFew() && names.every((name) => /^\d$/.test(name)) ? names[label] : String((place + 1) % 10);
  }

  function listChoices(item) {
    if (hasFew() || item.views === undefined) return listKeyed();
    return [...new Set([...item.likely.slice(0, MOST_LIKELY).map((one) => one.label), ...listKeyed()])];
  }

  const findByKey = (digit) => listKeyed().find((one) => keyOf(one) === String(digit));

  function remember(label) {
    if (typeof label !== "number" || hasFew()) return;
    chosen.set(label, Date.now());
    elements.remember("sessionStorage", STORAGE_KEY, [...chosen]);
  }

  let matches = [], active = 0;

  function findClasses(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return listAll();
    if (names === null) return /^\d{1,6}$/.test(wanted) ? [Number(wanted)] : [];
    const rank = (name) => {
      const place = name.toLowerCase().indexOf(wanted);
      return place < 0 ? 3 : place === 0 ? 0 : /[\s,_-]/.test(name[place - 1]) ? 1 : 2;
    };
    const ranked = names.map((name, label) => ({ label, rank: rank(name), length: name.length })).filter((one) => one.rank < 3);
    ranked.sort((one, other) => one.rank - other.rank || one.length - other.length || one.label - other.label);
    return ranked.slice(0, MOST_FOUND).map((one) => one.label);
  }

  // All classes by name, after the most recent ones.
  function listAll() {
    const recent = [...chosen].sort((one, other) => other[1] - one[1]).slice(0, MOST_RECENT).map(([label]) => label);
    const named = [...(names ?? []).keys()].sort((one, other) => nameOf(one).localeCompare(nameOf(other), "en", { numeric: true }));
    return [...new Set([...recent, ...named])];
  }

  function search() {
    matches = findClasses(query.value);
    active = query.value.trim() ? 0 : -1; // in the list of all classes, Enter chooses nothing
    renderFound();
  }

  function renderFound() {
    const options = matches.map((label, place) => {
      const option = make("li", { id: `found-${place}`, role: "option", textContent: nameOf(label) });
      option.setAttribute("aria-selected", String(place === active));
      option.addEventListener("click", () => choose(label));
      return option;
    });
    if (!options.length && query.value.trim()) options.push(make("li", { className: "none", role: "option", ariaDisabled: "true", textContent: "No such class" }));
    found.replaceChildren(...options);
    found.hidden = !options.length;
    const { top, bottom } = query.getBoundingClientRect();
    const above = top, below = innerHeight - bottom;
    found.classList.toggle("below", below > above);
    found.style.maxHeight = `${Math.min(TALLEST_LIST, Math.max(above, below) - 12)}px`;
    query.setAttribute("aria-expanded", String(!found.hidden));
    if (active in matches) query.setAttribute("aria-activedescendant", `found-${active}`);
    else query.removeAttribute("aria-activedescendant");
    find(`found-${active}`)?.scrollIntoView({ block: "nearest" });
  }

  function closeSearch() {
    query.value = "";
    [matches, active] = [[], 0];
    renderFound();
  }

  found.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
  query.addEventListener("input", search);
  query.addEventListener("blur", () => { found.hidden = true; query.setAttribute("aria-expanded", "false"); });
  query.addEventListener("focus", search);
  query.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter") {
      event.preventDefault();
      if (!event.repeat && active in matches) choose(matches[active]);
    } else if (event.key === "Escape") {
      closeSearch();
      leave();
    } else if (["ArrowDown", "ArrowUp"].includes(event.key) && matches.length) {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      active = (Math.max(active, step === 1 ? -1 : 0) + step + matches.length) % matches.length;
      renderFound();
    }
  });

  return { nameOf, hasFew, keyOf, listChoices, findByKey, remember, closeSearch, setNames: (all) => { names = all; } };
}
