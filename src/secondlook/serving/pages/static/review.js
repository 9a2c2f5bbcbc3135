// The review page: shows images one by one, and sends the labels.
//
// No label is lost or applied to the wrong image: each one carries its image number, and stays in the outbox until the server confirms it.
"use strict";
(() => {
  const { find, make, say, countOf, plural, shareOf, titleOf } = elements;
  const AHEAD = 6; // images to prefetch
  const MOST_LEASED = 50; // limit of the server
  const MOST_UNDONE = 200;
  const EMPTY_PAUSE = 3000;
  const CHANGED_PAUSE = 800; // keys are ignored for this long after an unlabeled image was replaced
  const CLOSING_PAUSE = 4000; // the last label can be undone for this long; then the server stops
  const KEYS_KEY = "secondlook.review.keys";

  const root = find("review"), stage = find("stage"), picture = find("picture"), comment = find("comment");
  const keys = find("keys"), useKeys = find("use-keys");
  const onlyAudits = root.dataset.queue === "audits";

  const state = {
    current: null, // the image on the screen
    ahead: [], // the next ones
    past: [], // operations that can be undone: { number, kind, label, item }, latest last
    changed: new Map(), // time of the last operation on an image in this tab, by its number
    counts: null,
    pace: null,
    goal: null, // progress of labeling for a policy: { text, next_step, finished }
    trouble: null, // "away", "logged out", "outdated" or "moved"
    message: null,
    leaseSeconds: 300,
    shownView: null, // position of the enlarged view
    shownSince: null, // when the image on the screen was loaded
    hasBegun: false, // the classes are known
    hasLoaded: false,
  };
  let lastActive = Date.now();

  const outbox = makeOutbox({
    owner: root.dataset.owner,
    leaseSeconds: () => state.leaseSeconds,
    onChange: renderStatus,
    onTrouble: setTrouble,
    onSettled: settle,
    onRefused: refuse,
    onAdopted: dismiss,
  });
  const classes = makeClasses({ choose: (label) => decide("label", label), leave: focusStage });
  const pictures = makePictures({
    onChange: (number) => { if (state.current?.number === number) renderPicture(); },
    isAway: () => state.trouble !== null,
  });
  const views = makeViews({ nameOf: classes.nameOf, pictures, onSelect: selectView });
  const viewer = makeViewer();
  const record = makeRecord({ onCorrected: (number, label) => strip.correct(number, label) });
  const strip = makeStrip({ nameOf: classes.nameOf, onOpen: record.open });
  const { nameOf } = classes;

  function setTrouble(trouble) {
    if (state.trouble === trouble) return;
    state.trouble = trouble;
    renderStatus();
    if (!state.current) renderEmpty();
  }

  // --- Queue of operations ---

  const isUnsent = (number) => outbox.entries.some((one) => one.number === number);
  const isChanged = (number, since) => isUnsent(number) || (state.changed.get(number) ?? -1) >= since;

  function enqueue(operation) {
    state.changed.set(operation.number, performance.now());
    outbox.add(operation);
  }

  function settle(operation, content) {
    state.changed.set(operation.number, performance.now());
    takeProgress(content);
    if (operation.kind === "undo" && !operation.isShown) bringBack(content.item);
    if (state.ahead.length < AHEAD) refill();
  }

  // Another reviewer has the image now: drop all operations on it.
  function refuse(operation, error) {
    const { number } = operation;
    state.past = state.past.filter((one) => one.number !== number);
    state.ahead = state.ahead.filter((one) => one.number !== number);
    state.changed.set(number, performance.now());
    strip.remove(number);
    const prefix = operation.kind === "label" ? `The label “${nameOf(operation.body.label)}” was not saved: ` : "";
    setMessage(`${prefix}${error.message}`);
    if (state.current?.number === number) replaceCurrent();
  }

  // Images that were labeled in a closed tab need no label.
  function dismiss(numbers) {
    state.ahead = state.ahead.filter((one) => !numbers.includes(one.number));
    if (numbers.includes(state.current?.number)) replaceCurrent();
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
    const count = Math.min(MOST_LEASED, 1 + AHEAD + outbox.entries.length);
    try {
      takeLease(await server.post("/v1/review/lease", { count, audits: onlyAudits }), started);
      if (!outbox.isSending()) setTrouble(null);
    } catch (error) {
      const trouble = server.findTrouble(error) ?? "away";
      if (trouble !== "away") await server.renewToken(state.leaseSeconds);
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
    state.ahead.forEach(pictures.prepare);
    forget();
    if (isLost) {
      const isMoved = server.isMoving();
      if (!isMoved) setMessage("The last image was labeled elsewhere, or given to another reviewer because you were inactive.");
      replaceCurrent(isMoved ? "The last image is reserved for your last login, and will come back." : "");
    } else if (!current) {
      showNext(find("last").textContent); // keep the note about the last operation
    }
    state.hasLoaded = true;
    renderActions();
  }

  function forget() {
    const recent = state.past.slice(-5).map((entry) => entry.number);
    const kept = new Set([state.current?.number, ...state.ahead.map((item) => item.number), ...recent]);
    pictures.forget(kept);
    for (const [number, time] of state.changed) {
      if (!kept.has(number) && time < performance.now() - 10 * server.TIMEOUT) state.changed.delete(number);
    }
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
    if (outbox.entries.length) return;
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
    if (pictures.read(item).status === "loading") {
      say("The image is still loading.");
      return;
    }
    if (stage.classList.contains("changed")) {
      say("The image has changed.");
      return;
    }
    state.past.push({ number: item.number, kind, label, item });
    if (state.past.length > MOST_UNDONE) state.past.shift();
    const done = { label: `Labeled ${nameOf(label)}.`, skip: "Skipped.", escalate: "Handed to another reviewer." }[kind];
    enqueue({ kind, number: item.number, body: describeOperation(kind, label) });
    if (kind === "label") strip.add(item, label);
    classes.remember(label);
    showNext(done);
    focusStage();
    if (state.ahead.length < AHEAD / 2) refill();
  }

  function describeOperation(kind, label) {
    const text = comment.value.trim() || null;
    const seconds = state.shownSince === null ? null : (performance.now() - state.shownSince) / 1000;
    return { label: { label, comment: text, seconds }, escalate: { comment: text } }[kind] ?? {};
  }

  function undo() {
    const entry = state.past.pop();
    if (!entry) {
      say("Nothing to undo.");
      return;
    }
    if (outbox.retract(entry.number, entry.kind)) state.changed.set(entry.number, performance.now()); // never sent to the server
    else enqueue({ kind: "undo", number: entry.number, body: {}, isShown: entry.item !== null });
    strip.remove(entry.number);
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
    focusStage();
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

  // --- Rendering ---

  function onPress(button, action) {
    button.addEventListener("click", (event) => {
      if (event.detail < 2) action(); // the second click of a double click would apply to the next image
      // Enter must confirm the next prediction, not press the button in the same place.
      if (event.detail) focusStage();
    });
  }

  function focusStage() {
    (state.current ? stage : find("empty")).focus({ preventScroll: true });
  }

  function setMessage(text) {
    state.message = text;
    renderStatus();
  }

  // Audits, and all images labeled for a policy, come without their predictions.
  const isBlind = (item) => item.views === undefined;
  const isUnanimous = (item) => !isBlind(item) && item.views.every((view) => view.label === item.label);

  function show(item, done = "") {
    Object.assign(state, { current: item, shownView: null, shownSince: null });
    classes.closeSearch();
    comment.value = "";
    find("work").hidden = item === null;
    find("empty").hidden = item !== null;
    find("last").textContent = done;
    renderActions();
    renderStatus();
    if (item === null) {
      viewer.clear();
      const hadFocus = stage.contains(document.activeElement) || document.activeElement === document.body;
      renderEmpty(done);
      if (hadFocus && done) find("empty").focus({ preventScroll: true });
      return;
    }
    root.toggleAttribute("data-blind", isBlind(item));
    pictures.prepare(item);
    renderCaption();
    renderAsked();
    renderPicture();
    renderChoices();
    views.render(item, null, false);
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
    if (view) details.unshift(`view: ${views.describe(view.view)}`);
    const name = make("b", { textContent: titleOf(item), title: item.id });
    find("title").replaceChildren(name, make("span", { textContent: details.join(" · ") }));
  }

  function renderAsked() {
    const { asked, second } = state.current;
    const reason = asked?.comment ? `: “${asked.comment}”` : ".";
    find("asked").hidden = !asked && !second;
    find("asked").textContent = asked ? `${asked.by} asks for a second opinion${reason}` : "A second opinion is needed.";
  }

  function renderPicture() {
    const item = state.current;
    const entry = pictures.read(item);
    const { status } = entry;
    picture.dataset.status = status;
    find("zooms").hidden = status !== "ready";
    if (status !== "loading") state.shownSince ??= performance.now();
    if (status === "ready") {
      if (state.shownView === null) viewer.show(entry.image, entry.display);
      else viewer.show(copyImage(entry.views.get(state.shownView)));
      return;
    }
    const texts = {
      loading: "Loading the image …",
      broken: "Your browser cannot show this image.",
      missing: "This image is not stored here. Look at the original:",
    };
    const text = make("p", {}, texts[status]);
    if (status === "missing") text.append(make("code", { textContent: item.id }), item.name ? make("code", { textContent: item.name }) : "");
    viewer.clear(text);
  }

  const copyImage = (small) => Object.assign(new Image(), { alt: "The image to review, in a view", src: small.src });

  function selectView(position, event) {
    state.shownView = position;
    renderCaption();
    renderPicture();
    views.render(state.current, position);
    if (event.detail) focusStage(); // Enter must confirm, not press the tile again
    else find("view-list").querySelector("[aria-pressed=true]")?.focus();
  }

  function renderChoices() {
    const item = state.current;
    const labels = classes.listChoices(item);
    find("likely").replaceChildren(...labels.map((label) => make("li", {}, makeChoice(item, label))));
    find("confirm").hidden = !isUnanimous(item);
    if (!isBlind(item)) {
      find("confirm-text").textContent = nameOf(item.label);
      find("confirm").setAttribute("aria-label", `Confirm the predicted class: ${nameOf(item.label)}`);
    }
    find("search").hidden = classes.hasFew();
  }

  function makeChoice(item, label) {
    const key = classes.keyOf(label), isPredicted = label === item.label;
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

  function renderActions() {
    const cannot = state.past.length === 0;
    find("undo").disabled = cannot;
    find("empty-undo").hidden = cannot;
  }

  function renderStatus() {
    renderProgress();
    renderNotice();
    const count = outbox.entries.length;
    find("saving").textContent = count && (state.trouble || outbox.isSlow()) ? `${countOf(count)} not saved yet` : "";
  }

  function renderGoal() {
    find("goal").hidden = !state.goal || state.goal.finished; // the middle of the page shows the end
    find("goal").textContent = state.goal?.text ?? "";
    find("progress").hidden = state.goal !== null || onlyAudits;
  }

  function renderProgress() {
    if (!state.counts) return;
    renderGoal();
    const count = (kind) => outbox.entries.filter((one) => one.kind === kind).length;
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
    const count = outbox.entries.length;
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
    const isOthers = waiting > outbox.entries.length;
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

  // --- Keys and buttons ---

  function confirmPrediction() {
    if (!state.current) return;
    if (isUnanimous(state.current)) decide("label", state.current.label);
    else say(isBlind(state.current) ? "Choose a class; the prediction is hidden." : "Choose a class; the views disagree.");
  }

  function choose(digit) {
    const label = classes.findByKey(digit);
    if (state.current && label !== undefined) decide("label", label);
  }

  const COMMANDS = {
    enter: confirmPrediction,
    u: undo,
    s: () => decide("skip"),
    e: () => { if (!find("escalate").hidden) decide("escalate"); },
    m: () => comment.focus(),
    v: () => views.toggle(state.current, state.shownView),
    z: viewer.zoomIn,
    x: viewer.zoomOut,
    f: viewer.fit,
    l: viewer.toggleAdjust,
    p: viewer.toggleExact,
    o: viewer.toggleOutline,
    "/": () => { if (!find("search").hidden) find("query").focus(); },
    "?": () => keys.showModal(),
    arrowleft: () => viewer.pan(-80, 0),
    arrowright: () => viewer.pan(80, 0),
    arrowup: () => viewer.pan(0, -80),
    arrowdown: () => viewer.pan(0, 80),
  };

  // The digit of a key, by its position on keyboards that need Shift for digits.
  function findDigit(event) {
    if (/^\d$/.test(event.key)) return Number(event.key);
    return !event.shiftKey && !COMMANDS[event.key] && /^Digit\d$/.test(event.code) ? Number(event.code.slice(-1)) : null;
  }

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input:not([type=checkbox], [type=range]), select")) return;
    const name = event.key.toLowerCase();
    if (["enter", " "].includes(name) && event.target.closest("button, a, summary, input")) return; // the browser handles these
    if (name.startsWith("arrow") && (!viewer.isZoomed() || event.target.closest("input"))) return;
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
  onPress(find("escalate"), () => decide("escalate"));
  onPress(find("all-views"), () => views.toggle(state.current, state.shownView));
  for (const button of document.querySelectorAll("#zooms button")) {
    button.addEventListener("click", (event) => { if (event.detail) focusStage(); });
  }
  comment.addEventListener("keydown", (event) => {
    if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault();
    focusStage(); // the comment is sent with the label
  });
  find("show-keys").addEventListener("click", () => keys.showModal());
  find("notice-close").addEventListener("click", () => setMessage(null));
  find("notice-button").addEventListener("click", () => location.reload());
  useKeys.addEventListener("change", () => elements.remember("localStorage", KEYS_KEY, useKeys.checked));
  keys.addEventListener("close", focusStage);

  function comeBack() {
    lastActive = Date.now();
    outbox.wake();
    outbox.takeOver();
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

  async function begin() {
    useKeys.checked = elements.recall("localStorage", KEYS_KEY, true);
    await outbox.open();
    while (true) {
      try {
        classes.setNames((await server.get("/v1/review/classes")).classes);
        break;
      } catch (error) {
        setTrouble(server.findTrouble(error) ?? "away");
        await outbox.pause(1000);
      }
    }
    state.hasBegun = true;
    refill();
    strip.load();
  }
  begin();
})();
