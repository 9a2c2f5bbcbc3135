// The views of an image: their votes, and tiles that show them large.
"use strict";
function makeViews({ nameOf, pictures, onSelect }) {
  const { find, make, shareOf } = elements;
  let showsAll = false;

  function render(item, shown, all) {
    find("views").hidden = !item.views;
    if (!item.views) return;
    showsAll = all ?? showsAll;
    const views = pictures.listViews(item);
    const differing = views.filter((view) => view.differs);
    find("votes").textContent = describeVotes(item);
    const isStored = pictures.read(item).status !== "missing";
    const listed = isStored ? (showsAll ? views : differing.slice(0, pictures.MOST_VIEWS)) : differing;
    find("view-list").replaceChildren(...listed.map((view) => make("li", {}, makeTile(item, view, isStored, shown))));
    const button = find("all-views");
    button.hidden = !isStored || views.length <= Math.min(differing.length, pictures.MOST_VIEWS) || views.length === 1;
    button.replaceChildren(showsAll ? "Show fewer " : `Show all ${views.length} `, make("kbd", { textContent: "V" }));
    button.setAttribute("aria-expanded", String(showsAll));
  }

  function makeTile(item, view, isStored, shown) {
    const texts = make(
      "span", { className: "texts" },
      make("b", { textContent: nameOf(view.label) }), make("span", { className: "share", textContent: shareOf(view.probability) }),
      make("small", { textContent: describe(view.view), title: view.view }),
    );
    if (!isStored) return make("div", { className: view.differs ? "tile differs" : "tile" }, texts);
    const tile = make("button", { type: "button", className: "tile" }, pictures.fetchView(item, view), texts);
    tile.classList.toggle("differs", view.differs);
    const isShown = shown === view.position;
    tile.setAttribute("aria-pressed", String(isShown));
    tile.setAttribute("aria-label", `View ${describe(view.view)}: ${nameOf(view.label)}, ${shareOf(view.probability)}. Show it large.`);
    tile.addEventListener("click", (event) => onSelect(isShown ? null : view.position, event));
    return tile;
  }

  function describeVotes(item) {
    const total = item.views.length;
    if (total === 1) return "The classifier looked at the image once.";
    const votes = new Map();
    for (const view of item.views) votes.set(view.label, (votes.get(view.label) ?? 0) + 1);
    if (votes.size === 1) return `All ${total} views show ${nameOf([...votes.keys()][0])}.`;
    const ordered = [...votes].sort((one, other) => other[1] - one[1]);
    return `Of ${total} views, ${ordered.map(([label, count]) => `${count} show ${nameOf(label)}`).join(", ")}.`;
  }

  // Common views in words: "hflip+shift:2,0" becomes "mirrored, shifted 2, 0".
  function describe(text) {
    const words = {
      identity: "unchanged", hflip: "mirrored", vflip: "upside down", gray: "gray", shift: "shifted", rotate: "rotated", zoom: "zoomed",
      blur: "blurred", noise: "noisy", crop: "cropped",
    };
    const step = (one) => {
      const [name, amount = ""] = one.split(/:(.*)/s);
      const shown = amount.replaceAll("-", "−").replaceAll(",", ", ") + (name === "rotate" && amount ? "°" : "");
      return [words[name] ?? name, shown].filter(Boolean).join(" ");
    };
    return text.split("+").map(step).join(", ");
  }

  function toggle(item, shown) {
    if (item?.views && !find("all-views").hidden) render(item, shown, !showsAll);
  }

  return { render, describe, toggle };
}
