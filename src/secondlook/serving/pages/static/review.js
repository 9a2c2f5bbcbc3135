// The review page: shows images one by one, and sends the labels.
//
// No label is lost or applied to the wrong image: each one carries its image number, stays in a queue of this tab until the
// server confirms it, and is resent if it may not have arrived. Requests are idempotent.
"use strict";
(() => {
  const AHEAD = 6; // images to prefetch
  const MOST_LEASED = 50; // limit of the server
  const FEW_CLASSES = 10; // up to this number, each class has a button and a key
  const MOST_LIKELY = 6; // suggestions if there are more classes
  const MOST_KEYS = 9;
  const MOST_RECENT = 5;
  const MOST_VIEWS = 6;
  const MOST_FOUND = 8;
  const TALLEST_LIST = 360;
  const MOST_UNDONE = 200;
  const SMALL = 128; // smaller images are enlarged in whole pixels
  const ZOOM = 2.5;
  const TIMEOUT = 20000;
  const LONGEST_PAUSE = 4000;
  const EMPTY_PAUSE = 3000;
  const CHANGED_PAUSE = 800; // keys are ignored for this long after an unlabeled image was replaced
  const VIEW_ATTEMPTS = 6;
  const CLOSING_PAUSE = 4000; // the last label can be undone for this long; then the server stops

  const find = (id) => document.getElementById(id);
  const root = find("review"), stage = find("stage"), picture = find("picture"), query = find("query"), found = find("found");
  const keys = find("keys"), useKeys = find("use-keys");
  const onlyAudits = root.dataset.queue === "audits";
  const storageKey = `secondlook.review.${root.dataset.reviewer}`;
  const keysKey = "secondlook.review.keys";
  const classesKey = "secondlook.classes";

  const state = {
    classes: null, // names of all classes, if known
    current: null, // the image on the screen
    ahead: [], // the next ones
    past: [], // operations that can be undone: { number, kind, label, item }, latest last
    unsent: [], // operations in order: { kind, number, label, attempts }; labels are classes, or texts of other answers
    changed: new Map(), // time of the last operation on an image in this tab, by its number
    counts: null,
    pace: null,
    goal: null, // progress of labeling for a policy: { text, next_step, finished }
    trouble: null, // "away", "logged out", "outdated" or "moved"
    movedUntil: 0, // until then, images may be reserved for the last login
    message: null,
    leaseSeconds: 300,
    shownView: null, // position of the enlarged view
    allViews: false,
    zoomed: false,
    chosen: new Map(), // time of the last choice of each class, first chosen first: of many classes, these have keys
    hasBegun: false, // the classes are known
    hasLoaded: false,
  };
  const pictures = new Map(); // number -> { image, status, views }
  let token = document.querySelector("meta[name=csrf-token]")?.content ?? "";
  let lastActive = Date.now();

  // --- The server ---

  async function post(path, body = {}) {
    const response = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRF-Token": token },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(TIMEOUT),
    });
    const content = await response.json().catch(() => null);
    if (response.ok && content?.counts) return content;
    const { code = "", message = `the server responds with status ${response.status}` } = content?.error ?? {};
    // A proxy may respond with its own page and status 200: nothing was saved then.
    throw Object.assign(new Error(message), { status: response.ok ? 502 : response.status, code });
  }

  // Classifies an error: "away", "logged out", "outdated", "moved", or null if the request itself was refused.
  function findTrouble(error) {
    if (error.status === undefined || error.status >= 500 || [408, 429].includes(error.status)) return "away";
    if (error.code === "csrf") return "outdated";
    if (error.code === "lease_lost" && Date.now() < state.movedUntil) return "moved";
    return [401, 403].includes(error.status) ? "logged out" : null;
  }

  // After a new login in another tab, this page needs the token of the new session.
  async function renewToken() {
    try {
      const response = await fetch(location.pathname + location.search, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(TIMEOUT) });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const found = page.querySelector("meta[name=csrf-token]")?.content ?? token;
      if (found !== token) state.movedUntil = Date.now() + 1000 * state.leaseSeconds + LONGEST_PAUSE;
      token = found;
    } catch {
      // The next attempt shows the error.
    }
  }

  let wake = () => {};
  const pause = (milliseconds) => new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    wake = () => { clearTimeout(timer); resolve(); };
  });

  function setTrouble(trouble) {
    if (state.trouble === trouble) return;
    state.trouble = trouble;
    renderStatus();
    if (!state.current) renderEmpty();
  }

  // --- Queue of operations ---

  const isUnsent = (number) => state.unsent.some((one) => one.number === number);
  const isChanged = (number, since) => isUnsent(number) || (state.changed.get(number) ?? -1) >= since;

  function store() {
    try {
      if (state.unsent.length) sessionStorage.setItem(storageKey, JSON.stringify(state.unsent));
      else sessionStorage.removeItem(storageKey);
    } catch {
      // Without storage, labels are only kept in memory.
    }
  }

  function restore() {
    try {
      const stored = JSON.parse(sessionStorage.getItem(storageKey) ?? "[]");
      state.unsent = stored.map((one) => ({ ...one, attempts: 1 })); // they may have arrived
    } catch {
      state.unsent = [];
    }
    try {
      state.chosen = new Map(JSON.parse(sessionStorage.getItem(classesKey) ?? "[]"));
    } catch {
      // No class has been chosen yet.
    }
  }

  function remember(label) {
    if (typeof label !== "number" || hasFewClasses()) return;
    state.chosen.set(label, Date.now());
    try {
      sessionStorage.setItem(classesKey, JSON.stringify([...state.chosen]));
    } catch {
      // The classes are remembered until the page is loaded again.
    }
  }

  function enqueue(operation) {
    state.unsent.push({ ...operation, attempts: 0 });
    state.changed.set(operation.number, performance.now());
    store();
    renderStatus();
    send();
  }

  let isSending = false;
  async function send() {
    if (isSending) return;
    isSending = true;
    let wait = 250;
    while (state.unsent.length) {
      const operation = state.unsent[0];
      operation.attempts += 1;
      store();
      try {
        const body = operation.kind === "label" ? { label: operation.label } : {};
        settle(operation, await post(`/v1/review/${operation.number}/${operation.kind}`, body));
        setTrouble(null);
        wait = 250;
      } catch (error) {
        const trouble = findTrouble(error);
        if (trouble === null) refuse(operation, error);
        else {
          if (["logged out", "outdated"].includes(trouble)) await renewToken();
          if (trouble !== "outdated" || operation.attempts > 2) setTrouble(trouble);
          await pause(wait);
          wait = Math.min(2 * wait, LONGEST_PAUSE);
        }
      }
    }
    isSending = false;
    renderStatus();
  }

  function settle(operation, content) {
    state.unsent.shift();
    state.changed.set(operation.number, performance.now());
    store();
    takeProgress(content);
    if (operation.kind === "undo" && !operation.isShown) bringBack(content.item);
    if (state.ahead.length < AHEAD) refill();
  }

  // Another reviewer has the image now: drop all operations on it.
  function refuse(operation, error) {
    const { number } = operation;
    state.unsent = state.unsent.filter((one) => one.number !== number);
    state.past = state.past.filter((one) => one.number !== number);
    state.ahead = state.ahead.filter((one) => one.number !== number);
    state.changed.set(number, performance.now());
    store();
    const prefix = operation.kind === "label" ? `The label “${nameOf(operation.label)}” was not saved: ` : "";
    setMessage(`${prefix}${error.message}`);
    if (state.current?.number === number) replaceCurrent();
  }

  // --- Images to review ---

  let isRefilling = false, refillAgain = false, timer = 0;
  async function refill() {
    if (state.goal?.finished) return; // the server stops
    if (isRefilling) {
      refillAgain = true;
      return;
    }
    isRefilling = true;
    refillAgain = false;
    clearTimeout(timer);
    const started = performance.now();
    const count = Math.min(MOST_LEASED, 1 + AHEAD + state.unsent.length);
    try {
      takeLease(await post("/v1/review/lease", { count, audits: onlyAudits }), started);
      if (!isSending) setTrouble(null);
    } catch (error) {
      const trouble = findTrouble(error) ?? "away";
      if (trouble !== "away") await renewToken();
      setTrouble(trouble);
    }
    isRefilling = false;
    if (refillAgain) refill();
    else timer = setTimeout(renew, choosePause());
    if (!state.current) renderEmpty();
  }

  function choosePause() {
    if (state.trouble) return 1500;
    return state.current ? Math.min(60000, (state.leaseSeconds * 1000) / 3) : EMPTY_PAUSE;
  }

  // Renews leases only while the reviewer is active, not for an abandoned page.
  function renew() {
    const isIdle = Date.now() - lastActive > state.leaseSeconds * 1000;
    if (state.current && (isIdle || document.hidden)) timer = setTimeout(renew, choosePause());
    else refill();
  }

  function takeLease(content, started) {
    takeProgress(content);
    state.leaseSeconds = content.lease_seconds;
    if (!state.past.length && content.last !== null && !isChanged(content.last, started)) {
      state.past.push({ number: content.last, kind: "label", item: null });
    }
    const held = new Set(content.items.map((item) => item.number));
    const { current } = state;
    const isLost = current !== null && !state.goal?.finished && !held.has(current.number) && !isChanged(current.number, started);
    const own = state.ahead.filter((item) => isChanged(item.number, started));
    const known = new Set([current?.number, ...own.map((item) => item.number)]);
    const fresh = content.items.filter((item) => !known.has(item.number) && !isChanged(item.number, started));
    state.ahead = [...own, ...fresh];
    state.ahead.forEach(fetchPictures);
    forgetPictures();
    if (isLost) {
      const isMoved = Date.now() < state.movedUntil;
      if (!isMoved) setMessage("The last image was labeled elsewhere, or given to another reviewer because you were inactive.");
      replaceCurrent(isMoved ? "The last image is reserved for your last login, and will come back." : "");
    } else if (!current) {
      showNext(find("last").textContent); // keep the note about the last operation
    }
    state.hasLoaded = true;
    renderActions();
  }

  function takeProgress(content) {
    state.counts = content.counts;
    state.pace = content.pace;
    state.goal = content.goal ?? null;
    renderStatus();
    if (state.goal?.finished) finish();
  }

  // No more labels are needed: hide the image; for a moment, the last label can be undone.
  let closingTimer = 0;
  function finish() {
    clearTimeout(closingTimer);
    state.ahead = [];
    if (state.unsent.length) return;
    show(null);
    closingTimer = setTimeout(() => {
      if (!state.goal.finished) return;
      state.past = [];
      renderActions();
    }, CLOSING_PAUSE);
  }

  function decide(kind, label = null) {
    const item = state.current;
    if (!item) return;
    if (!isVisible(item)) {
      say("The image is still loading.");
      return;
    }
    if (stage.classList.contains("changed")) {
      say("The image has changed.");
      return;
    }
    state.past.push({ number: item.number, kind, label, item });
    if (state.past.length > MOST_UNDONE) state.past.shift();
    const done = kind === "label" ? `Labeled ${nameOf(label)}.` : "Skipped.";
    enqueue({ kind, number: item.number, label });
    remember(label);
    showNext(done);
    stage.focus({ preventScroll: true });
    if (state.ahead.length < AHEAD / 2) refill();
  }

  function undo() {
    const entry = state.past.pop();
    if (!entry) {
      say("Nothing to undo.");
      return;
    }
    const place = state.unsent.findLastIndex((one) => one.number === entry.number && one.kind === entry.kind);
    if (place >= 0 && state.unsent[place].attempts === 0) {
      state.unsent.splice(place, 1); // never sent to the server
      state.changed.set(entry.number, performance.now());
      store();
    } else {
      enqueue({ kind: "undo", number: entry.number, isShown: entry.item !== null });
    }
    if (entry.item) bringBack(entry.item, entry);
    else say("Undoing …");
  }

  function bringBack(item, entry = null) {
    if (state.current?.number === item.number) {
      say("Undone.");
      renderActions();
      return;
    }
    state.ahead = state.ahead.filter((one) => one.number !== item.number);
    if (state.current) state.ahead.unshift(state.current);
    const was = entry?.kind === "label" ? ` It was labeled ${nameOf(entry.label)}.` : "";
    show(item, `Undone.${was}`);
    (state.current ? stage : find("empty")).focus({ preventScroll: true });
  }

  function showNext(done = "") {
    show(state.ahead.shift() ?? null, done);
  }

  // Replaces an image without a label; a key pressed at this moment was meant for the old image.
  let changedTimer = 0;
  function replaceCurrent(reason = "") {
    showNext(reason);
    stage.classList.add("changed");
    clearTimeout(changedTimer);
    changedTimer = setTimeout(() => stage.classList.remove("changed"), CHANGED_PAUSE);
  }

  // --- Pictures ---

  function fetchPictures(item) {
    if (pictures.has(item.number)) return;
    const entry = { image: null, status: item.image ? "loading" : "missing", views: new Map() };
    pictures.set(item.number, entry);
    if (!item.image) return;
    entry.image = new Image();
    entry.image.alt = `The image to review, ${titleOf(item)}`;
    load(entry, item.number, 500);
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
    if (state.current?.number === number) renderPicture();
  }

  function fetchView(item, view) {
    const { views } = pictures.get(item.number);
    if (!views.has(view.position)) {
      const image = new Image();
      image.alt = "";
      let attempts = 0;
      image.onload = () => { image.classList.toggle("pixels", isSmall(image)); image.hidden = false; };
      image.onerror = () => {
        image.hidden = true;
        attempts += 1;
        const isWanted = pictures.get(item.number)?.views === views && (state.trouble || attempts < VIEW_ATTEMPTS);
        if (isWanted) setTimeout(() => { image.src = address; }, Math.min(250 * 2 ** attempts, LONGEST_PAUSE));
      };
      const address = `/v1/review/${item.number}/views/${view.position}`;
      image.src = address;
      views.set(view.position, image);
    }
    return views.get(view.position);
  }

  function forgetPictures() {
    const recent = state.past.slice(-5).map((entry) => entry.number);
    const kept = new Set([state.current?.number, ...state.ahead.map((item) => item.number), ...recent]);
    for (const number of pictures.keys()) if (!kept.has(number)) pictures.delete(number);
    for (const number of state.changed.keys()) {
      if (!kept.has(number) && state.changed.get(number) < performance.now() - 10 * TIMEOUT) state.changed.delete(number);
    }
  }

  // An enlarged copy of a view.
  function copyImage(small) {
    const image = new Image();
    image.alt = "The image to review, in a view";
    image.onload = () => { image.classList.toggle("pixels", isSmall(image)); fit(); };
    image.src = small.src;
    return image;
  }

  const isVisible = (item) => pictures.get(item.number)?.status !== "loading";
  const isSmall = (image) => Math.max(image.naturalWidth, image.naturalHeight) <= SMALL;

  // --- Rendering ---

  const nameOf = (label) => (typeof label === "string" ? label : state.classes?.[label] ?? `class ${label}`);
  const titleOf = (item) => item.name ?? item.id;
  const shareOf = (share) => (share > 0 && share < 0.005 ? "<1\u00a0%" : `${Math.round(100 * share)}\u00a0%`);
  const countOf = (count) => count.toLocaleString("en");
  const plural = (count, one, many) => `${countOf(count)} ${count === 1 ? one : many}`;

  function make(tag, properties = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  let said = "";
  function say(text) {
    said = said === text ? `${text}\u00a0` : text; // screen readers skip a repeated text
    find("live").textContent = said;
  }

  function onPress(button, action) {
    button.addEventListener("click", (event) => {
      if (event.detail < 2) action(); // the second click of a double click would apply to the next image
      // Enter must confirm the next prediction, not press the button in the same place.
      if (event.detail) (state.current ? stage : find("empty")).focus({ preventScroll: true });
    });
  }

  function setMessage(text) {
    state.message = text;
    renderStatus();
  }

  // Audits, and all images labeled for a policy, come without their predictions.
  const isBlind = (item) => item.views === undefined;
  const isUnanimous = (item) => !isBlind(item) && item.views.every((view) => view.label === item.label);

  function listViews(item) {
    if (isBlind(item)) return [];
    const all = item.views.map((view, position) => ({ ...view, position, differs: view.label !== item.label }));
    return all.sort((one, other) => other.differs - one.differs || (one.differs ? other.probability - one.probability : 0));
  }

  function show(item, done = "") {
    Object.assign(state, { current: item, shownView: null, allViews: false, zoomed: false });
    closeSearch();
    find("work").hidden = item === null;
    find("empty").hidden = item !== null;
    find("last").textContent = done;
    renderActions();
    renderStatus();
    if (item === null) {
      picture.replaceChildren();
      const hadFocus = stage.contains(document.activeElement) || document.activeElement === document.body;
      renderEmpty(done);
      if (hadFocus && done) find("empty").focus({ preventScroll: true });
      return;
    }
    root.toggleAttribute("data-blind", isBlind(item));
    fetchPictures(item);
    renderCaption();
    renderPicture();
    renderChoices();
    renderViews();
    say(`${done} ${titleOf(item)}${describePrediction(item)}`.trim());
  }

  function describePrediction(item) {
    if (isBlind(item)) return ".";
    const differing = item.views.filter((view) => view.label !== item.label).length;
    const doubt = differing ? ` ${differing} of ${item.views.length} views disagree.` : "";
    return `: predicted ${nameOf(item.label)}, ${shareOf(item.likely[0].probability)}.${doubt}`;
  }

  function renderCaption() {
    const item = state.current;
    const view = state.shownView === null ? null : item.views[state.shownView];
    const details = isBlind(item) ? [] : [`confidence ${item.confidence.toFixed(2)}`, `not accepted: ${item.rejection}`];
    if (isBlind(item) && !state.goal) details.push("audit: the prediction is hidden");
    if (item.skips) details.push(item.skips === 1 ? "skipped before" : `skipped ${item.skips} times`);
    if (view) details.unshift(`view: ${describeView(view.view)}`);
    const name = make("b", { textContent: titleOf(item), title: item.id });
    find("title").replaceChildren(name, make("span", { textContent: details.join(" · ") }));
  }

  function renderPicture() {
    const item = state.current;
    const entry = pictures.get(item.number);
    const { status } = entry;
    const image = state.shownView === null ? entry.image : copyImage(entry.views.get(state.shownView));
    picture.dataset.status = status;
    find("zoom").hidden = status !== "ready";
    if (status === "ready") {
      image.classList.toggle("pixels", isSmall(image));
      picture.replaceChildren(image);
      fit();
      return;
    }
    const texts = {
      loading: "Loading the image …",
      broken: "Your browser cannot show this image.",
      missing: "This image is not stored here. Look at the original:",
    };
    const text = make("p", {}, texts[status]);
    if (status === "missing") text.append(make("code", { textContent: item.id }), item.name ? make("code", { textContent: item.name }) : "");
    picture.replaceChildren(text);
  }

  // Enlarges small images by a whole factor, and shrinks large ones to fit.
  function fit() {
    const image = picture.querySelector("img");
    if (!image?.naturalWidth) return;
    const { naturalWidth: width, naturalHeight: height } = image;
    let scale = Math.min(picture.clientWidth / width, picture.clientHeight / height);
    if (isSmall(image) && scale > 1) scale = Math.floor(scale);
    if (state.zoomed) scale = Math.max(ZOOM * scale, 1);
    image.style.width = `${Math.max(1, width * scale)}px`;
    image.style.height = `${Math.max(1, height * scale)}px`;
    picture.classList.toggle("zoomed", state.zoomed);
    find("zoom").setAttribute("aria-pressed", String(state.zoomed));
  }

  function zoom(x = 0.5, y = 0.5) {
    if (picture.dataset.status !== "ready") return;
    state.zoomed = !state.zoomed;
    fit();
    picture.scrollTo(x * picture.scrollWidth - picture.clientWidth / 2, y * picture.scrollHeight - picture.clientHeight / 2);
  }

  const hasFewClasses = () => state.classes !== null && state.classes.length <= FEW_CLASSES;
  const listKeyed = () => (hasFewClasses() ? [...state.classes.keys()] : [...state.chosen.keys()].slice(0, MOST_KEYS));

  // A key means the same class on every image: its digit if all names are digits, otherwise its place. Of many classes, the
  // first ones that the reviewer chooses get the keys.
  function keyOf(label) {
    const place = listKeyed().indexOf(label);
    if (place < 0) return null;
    return hasFewClasses() && state.classes.every((name) => /^\d$/.test(name)) ? state.classes[label] : String((place + 1) % 10);
  }

  function listChoices(item) {
    if (hasFewClasses() || isBlind(item)) return listKeyed();
    return [...new Set([...item.likely.slice(0, MOST_LIKELY).map((one) => one.label), ...listKeyed()])];
  }

  function renderChoices() {
    const item = state.current;
    const labels = listChoices(item);
    find("likely").replaceChildren(...labels.map((label) => make("li", {}, makeChoice(item, label))));
    find("confirm").hidden = !isUnanimous(item);
    if (!isBlind(item)) {
      find("confirm-text").textContent = nameOf(item.label);
      find("confirm").setAttribute("aria-label", `Confirm the predicted class: ${nameOf(item.label)}`);
    }
    find("search").hidden = hasFewClasses();
  }

  function makeChoice(item, label) {
    const key = keyOf(label), isPredicted = label === item.label;
    const share = item.likely?.find((one) => one.label === label)?.probability;
    const button = make(
      "button", { type: "button", className: "choice", title: nameOf(label) },
      key === null ? "" : make("kbd", { textContent: key, ariaHidden: "true" }),
      make("span", { className: "name", textContent: nameOf(label) }),
      isPredicted ? make("span", { className: "tag", textContent: "predicted" }) : "",
      make("span", { className: "share", textContent: share === undefined ? "" : shareOf(share) }),
    );
    button.style.setProperty("--share", share ?? 0);
    if (key !== null) button.setAttribute("aria-keyshortcuts", key);
    button.classList.toggle("predicted", isPredicted && isUnanimous(item));
    onPress(button, () => decide("label", label));
    return button;
  }

  function renderViews() {
    const item = state.current;
    find("views").hidden = isBlind(item);
    if (isBlind(item)) return;
    const views = listViews(item);
    const differing = views.filter((view) => view.differs);
    find("votes").textContent = describeVotes(item);
    const isStored = pictures.get(item.number).status !== "missing";
    const listed = isStored ? (state.allViews ? views : differing.slice(0, MOST_VIEWS)) : differing;
    find("view-list").replaceChildren(...listed.map((view) => make("li", {}, makeTile(item, view, isStored))));
    const button = find("all-views");
    button.hidden = !isStored || views.length <= Math.min(differing.length, MOST_VIEWS) || views.length === 1;
    button.replaceChildren(state.allViews ? "Show fewer " : `Show all ${views.length} `, make("kbd", { textContent: "V" }));
    button.setAttribute("aria-expanded", String(state.allViews));
  }

  function makeTile(item, view, isStored) {
    const texts = make(
      "span", { className: "texts" },
      make("b", { textContent: nameOf(view.label) }), make("span", { className: "share", textContent: shareOf(view.probability) }),
      make("small", { textContent: describeView(view.view), title: view.view }),
    );
    if (!isStored) return make("div", { className: view.differs ? "tile differs" : "tile" }, texts);
    const tile = make("button", { type: "button", className: "tile" }, fetchView(item, view), texts);
    tile.classList.toggle("differs", view.differs);
    const isShown = state.shownView === view.position;
    tile.setAttribute("aria-pressed", String(isShown));
    tile.setAttribute("aria-label", `View ${describeView(view.view)}: ${nameOf(view.label)}, ${shareOf(view.probability)}. Show it large.`);
    tile.addEventListener("click", (event) => {
      state.shownView = isShown ? null : view.position;
      renderCaption();
      renderPicture();
      renderViews();
      if (event.detail) stage.focus({ preventScroll: true }); // Enter must confirm, not press the tile again
      else find("view-list").querySelector("[aria-pressed=true]")?.focus();
    });
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
  function describeView(text) {
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

  function renderActions() {
    const cannot = state.past.length === 0;
    find("undo").disabled = cannot;
    find("empty-undo").hidden = cannot;
  }

  function renderStatus() {
    renderProgress();
    renderNotice();
    const count = state.unsent.length;
    find("saving").textContent = count && (state.trouble || state.unsent[0].attempts > 1) ? `${countOf(count)} not saved yet` : "";
  }

  function renderGoal() {
    find("goal").hidden = !state.goal || state.goal.finished; // the middle of the page shows the end
    find("goal").textContent = state.goal?.text ?? "";
    find("progress").hidden = state.goal !== null || onlyAudits;
  }

  function renderProgress() {
    if (!state.counts) return;
    renderGoal();
    const count = (kind) => state.unsent.filter((one) => one.kind === kind).length;
    const moved = count("label") - count("undo");
    const done = Math.max(0, state.counts.done + moved), waiting = Math.max(0, state.counts.waiting - moved);
    find("progress").value = done + waiting ? done / (done + waiting) : 1;
    find("done").replaceChildren(make("b", { textContent: countOf(done) }), ` of ${countOf(done + waiting)} done`, make("span", { textContent: ` · ${countOf(waiting)} waiting` }));
    if (state.goal) find("done").replaceChildren(make("b", { textContent: countOf(done) }), " labeled");
    else find("audit-count").textContent = countOf(state.counts.audits);
    if (onlyAudits) find("done").replaceChildren(make("b", { textContent: countOf(state.counts.audits) }), " waiting");
    const { own, everyone } = state.pace;
    const texts = [];
    if (own) texts.push(`${own < 9.95 ? own.toFixed(1) : Math.round(own)} per minute`);
    if (everyone && waiting && !state.goal && !onlyAudits) texts.push(`${describeMinutes(waiting / everyone)} left`);
    find("pace").textContent = texts.join(" · ");
  }

  function describeMinutes(minutes) {
    if (minutes < 1.5) return "about a minute";
    if (minutes < 90) return `about ${Math.round(minutes)} minutes`;
    const hours = minutes / 60;
    return hours < 36 ? `about ${Math.round(hours)} hours` : `about ${countOf(Math.round(hours / 24))} days`;
  }

  function renderNotice() {
    const count = state.unsent.length;
    const kept = count ? ` ${plural(count, "label is", "labels are")} kept here and will be sent later.` : "";
    const texts = {
      away: `The server does not respond; retrying.${kept}`,
      "logged out": `You are no longer logged in. Log in again in a new tab, then continue here.${kept}`,
      moved: `Some images are still reserved for your last login, for at most ${describeMinutes(state.leaseSeconds / 60)}; retrying.${kept}`,
      outdated: `Your session has ended. Reload the page to continue; nothing is lost.${kept}`,
    };
    const text = texts[state.trouble] ?? state.message ?? "";
    if (find("notice-text").textContent !== text) find("notice-text").textContent = text;
    find("notice").hidden = !text;
    find("notice").dataset.kind = state.trouble ?? "message";
    find("notice-link").hidden = state.trouble !== "logged out";
    find("notice-link").href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
    find("notice-button").hidden = state.trouble !== "outdated";
    find("notice-close").hidden = state.trouble !== null;
  }

  function renderEmpty(done = "") {
    const waiting = state.counts?.[onlyAudits ? "audits" : "waiting"] ?? 0, isAway = state.trouble !== null;
    const isOthers = waiting > state.unsent.length;
    let [mark, title, text] = ["✓", "All done", `No ${onlyAudits ? "audits" : "images"} are waiting for review. New ones appear here automatically.`];
    if (state.goal?.finished) [title, text] = ["Finished", state.goal.text];
    else if (isAway) [mark, title, text] = ["…", "Waiting for the server", "The next image appears when it responds."];
    else if (!state.hasLoaded || refillAgain || isRefilling) [mark, title, text] = ["…", "Looking for images", ""];
    else if (isOthers) {
      const rest = plural(waiting, "image is", "images are");
      [mark, title, text] = ["⌛", "With other reviewers", `The last ${rest} with other reviewers. Released images appear here automatically.`];
    }
    find("empty-mark").textContent = mark;
    find("empty-text").textContent = text;
    if (find("empty-title").textContent !== title) {
      find("empty-title").textContent = title;
      say(`${done} ${title}. ${text}`.trim());
    }
  }

  // --- Other classes by name ---

  let matches = [], active = 0;

  function findClasses(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return listAll();
    if (state.classes === null) return /^\d{1,6}$/.test(wanted) ? [Number(wanted)] : [];
    const rank = (name) => {
      const place = name.toLowerCase().indexOf(wanted);
      return place < 0 ? 3 : place === 0 ? 0 : /[\s,_-]/.test(name[place - 1]) ? 1 : 2;
    };
    const ranked = state.classes.map((name, label) => ({ label, rank: rank(name), length: name.length })).filter((one) => one.rank < 3);
    ranked.sort((one, other) => one.rank - other.rank || one.length - other.length || one.label - other.label);
    return ranked.slice(0, MOST_FOUND).map((one) => one.label);
  }

  // All classes by name, after the most recent ones.
  function listAll() {
    const recent = [...state.chosen].sort((one, other) => other[1] - one[1]).slice(0, MOST_RECENT).map(([label]) => label);
    const named = [...(state.classes ?? []).keys()].sort((one, other) => nameOf(one).localeCompare(nameOf(other), "en", { numeric: true }));
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
      option.addEventListener("click", () => decide("label", label));
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
      if (!event.repeat && active in matches) decide("label", matches[active]);
    } else if (event.key === "Escape") {
      closeSearch();
      stage.focus({ preventScroll: true });
    } else if (["ArrowDown", "ArrowUp"].includes(event.key) && matches.length) {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      active = (Math.max(active, step === 1 ? -1 : 0) + step + matches.length) % matches.length;
      renderFound();
    }
  });

  // --- Keys and buttons ---

  function confirmPrediction() {
    if (!state.current) return;
    if (isUnanimous(state.current)) decide("label", state.current.label);
    else say(isBlind(state.current) ? "Choose a class; the prediction is hidden." : "Choose a class; the views disagree.");
  }

  function choose(digit) {
    const label = listKeyed().find((one) => keyOf(one) === String(digit));
    if (state.current && label !== undefined) decide("label", label);
  }

  function toggleViews() {
    if (!state.current || isBlind(state.current) || find("all-views").hidden) return;
    state.allViews = !state.allViews;
    renderViews();
  }

  const COMMANDS = {
    enter: confirmPrediction,
    u: undo,
    s: () => decide("skip"),
    z: () => zoom(),
    v: toggleViews,
    "/": () => { if (!find("search").hidden) query.focus(); },
    "?": () => keys.showModal(),
    arrowleft: () => picture.scrollBy(-80, 0),
    arrowright: () => picture.scrollBy(80, 0),
    arrowup: () => picture.scrollBy(0, -80),
    arrowdown: () => picture.scrollBy(0, 80),
  };

  // The digit of a key, by its position on keyboards that need Shift for digits.
  function findDigit(event) {
    if (/^\d$/.test(event.key)) return Number(event.key);
    return !event.shiftKey && !COMMANDS[event.key] && /^Digit\d$/.test(event.code) ? Number(event.code.slice(-1)) : null;
  }

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing || keys.open) return;
    if (event.target.closest("input, textarea, select")) return;
    const name = event.key.toLowerCase();
    if (["enter", " "].includes(name) && event.target.closest("button, a, summary")) return; // the browser handles these
    if (name.startsWith("arrow") && !state.zoomed) return;
    const digit = findDigit(event);
    const command = digit === null ? COMMANDS[name] : () => choose(digit);
    if (!command || !(useKeys.checked || name === "?")) return;
    event.preventDefault();
    if (!event.repeat || name.startsWith("arrow")) command(); // holding a key down labels only one image
  });

  onPress(find("confirm"), confirmPrediction);
  onPress(find("skip"), () => decide("skip"));
  for (const button of document.querySelectorAll("[data-answer]")) {
    const answer = () => decide("label", button.dataset.answer);
    COMMANDS[button.getAttribute("aria-keyshortcuts")] = answer;
    onPress(button, answer);
  }
  onPress(find("undo"), undo);
  onPress(find("empty-undo"), undo);
  onPress(find("zoom"), () => zoom());
  onPress(find("all-views"), toggleViews);
  find("show-keys").addEventListener("click", () => keys.showModal());
  find("notice-close").addEventListener("click", () => setMessage(null));
  find("notice-button").addEventListener("click", () => location.reload());
  picture.addEventListener("click", (event) => {
    const image = event.target.closest("img");
    if (!image || event.detail > 1) return;
    const box = image.getBoundingClientRect();
    zoom((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  });
  useKeys.addEventListener("change", () => {
    try {
      localStorage.setItem(keysKey, String(useKeys.checked));
    } catch {
      // The choice is not remembered.
    }
  });
  keys.addEventListener("close", () => stage.focus({ preventScroll: true }));

  function comeBack() {
    lastActive = Date.now();
    wake();
    if (state.hasBegun) refill();
  }
  for (const kind of ["keydown", "pointerdown"]) {
    document.addEventListener(kind, () => {
      const wasIdle = Date.now() - lastActive > state.leaseSeconds * 500;
      lastActive = Date.now();
      if (wasIdle) refill();
    }, { capture: true });
  }
  window.addEventListener("online", comeBack);
  window.addEventListener("focus", () => { if (state.trouble) comeBack(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) comeBack(); });
  window.addEventListener("beforeunload", (event) => { if (state.unsent.length) event.preventDefault(); });
  new ResizeObserver(fit).observe(picture);

  async function begin() {
    try {
      useKeys.checked = localStorage.getItem(keysKey) !== "false";
    } catch {
      // Keys stay enabled.
    }
    restore();
    send();
    while (true) {
      try {
        const response = await fetch("/v1/review/classes", { signal: AbortSignal.timeout(TIMEOUT) });
        if (!response.ok) throw Object.assign(new Error(), { status: response.status });
        state.classes = (await response.json()).classes;
        break;
      } catch (error) {
        setTrouble(findTrouble(error) ?? "away");
        await pause(1000);
      }
    }
    state.hasBegun = true;
    refill();
  }
  begin();
})();
