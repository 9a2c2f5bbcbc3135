// Images and views, fetched before they are shown.
"use strict";
function makePictures({ onChange, isAway }) {
  const LONGEST_PAUSE = 4000;
  const MOST_VIEWS = 6;
  const VIEW_ATTEMPTS = 6;
  const pictures = new Map(); // number -> { image, status, display, views }

  function prepare(item) {
    if (pictures.has(item.number)) return;
    const entry = { image: null, status: item.image ? "loading" : "missing", display: null, views: new Map() };
    pictures.set(item.number, entry);
    if (!item.image) return;
    entry.image = Object.assign(new Image(), { alt: `The image to review, ${elements.titleOf(item)}` });
    load(entry, item.number, 500);
    entry.display = server.get(`/v1/review/${item.number}/display`).catch(() => null); // shown without it
    for (const view of listViews(item).filter((one) => one.differs).slice(0, MOST_VIEWS)) fetchView(item, view);
  }

  function load(entry, number, wait) {
    entry.image.onload = () => setStatus(entry, number, "ready");
    entry.image.onerror = async () => {
      const address = `/v1/review/${number}/image`;
      const status = await fetch(address, { method: "GET" }).then((response) => response.status, () => 0);
      if (status === 404) return setStatus(entry, number, "missing");
      if (status === 200) return setStatus(entry, number, "broken");
      await new Promise((resolve) => setTimeout(resolve, wait));
      if (pictures.get(number) === entry) load(entry, number, Math.min(2 * wait, LONGEST_PAUSE));
    };
    entry.image.src = `/v1/review/${number}/image`;
  }

  function setStatus(entry, number, status) {
    entry.status = status;
    onChange(number);
  }

  function fetchView(item, view) {
    const { views } = pictures.get(item.number);
    if (!views.has(view.position)) {
      const image = new Image();
      image.alt = "";
      let attempts = 0;
      image.onload = () => { image.hidden = false; };
      image.onerror = () => {
        image.hidden = true;
        attempts += 1;
        const isWanted = pictures.get(item.number)?.views === views && (isAway() || attempts < VIEW_ATTEMPTS);
        if (isWanted) setTimeout(() => { image.src = address; }, Math.min(250 * 2 ** attempts, LONGEST_PAUSE));
      };
      const address = `/v1/review/${item.number}/views/${view.position}`;
      image.src = address;
      views.set(view.position, image);
    }
    return views.get(view.position);
  }

  // The views that differ from the prediction come first; images labeled blindly have none.
  function listViews(item) {
    if (!item.views) return [];
    const all = item.views.map((view, position) => ({ ...view, position, differs: view.label !== item.label }));
    return all.sort((one, other) => other.differs - one.differs || (one.differs ? other.probability - one.probability : 0));
  }

  function forget(kept) {
    for (const number of pictures.keys()) if (!kept.has(number)) pictures.delete(number);
  }

  return { prepare, fetchView, listViews, forget, read: (item) => pictures.get(item.number), MOST_VIEWS };
}
