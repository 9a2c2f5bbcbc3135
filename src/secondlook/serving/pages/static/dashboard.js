// The dashboard: fetches the numbers every few seconds, and redraws the plots when they change.
"use strict";

const ROUND = 3000;
const PLOT_ROUND = 6000;
const PATIENCE = 15000;
const MINUTES = 60;
const csrfToken = document.querySelector("meta[name=csrf-token]")?.content ?? "";
const mayReview = byId("alarm").content.querySelector("form") !== null;

// Percent with three significant digits, as in the monitor texts.
const formatRate = (share) => `${Number((100 * share).toPrecision(3))}\u00a0%`;
const formatRange = (low, high) => `${formatRate(low)} to ${formatRate(high)}`;
const formatFlow = (perSecond) => (perSecond === 0 || perSecond >= 0.095 ? Number(perSecond.toPrecision(2)).toString() : Number((60 * perSecond).toPrecision(2)).toString());
const flowUnit = (perSecond) => (perSecond === 0 || perSecond >= 0.095 ? "images per second" : "images per minute");
const MOMENTS = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "short" });
const formatMoment = (text) => MOMENTS.format(new Date(text));
const formatClock = (date) => date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

function setText(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

function showIf(id, isShown) {
  byId(id).hidden = !isShown;
}

// ---- Result

const BADGES = { problem: "▲ Problem", broken: "▲ Broken", "images changed": "▲ Images changed", holds: "✓ Holds", undecided: "… Undecided", "not checked yet": "– Not checked yet" };
const ALARMS = { shift: "Shift alarm", broken: "Broken guarantee", unknown: "More unknown images" };
const { calibrate, history: historyPage } = byId("result").dataset;
const listOpen = ({ alarms }) => (alarms ?? []).filter((one) => one.resolved_at === null);
const countOf = (count, name) => `${formatCount(count)} ${name}${count === 1 ? "" : "s"}`;

function showResult(status) {
  const { state, decisions } = status;
  const open = listOpen(status);
  const isAlarm = ["problem", "broken", "images changed"].includes(state);
  const isCalm = open.length > 0 && open.every((one) => one.acknowledged_by !== null) && state !== "problem";
  byId("badge").className = `badge ${isAlarm ? (isCalm ? "" : "bad") : state === "holds" ? "good" : ""}`;
  setText("badge", `${BADGES[state]}${isAlarm && isCalm ? ", acknowledged" : ""}`);
  showIf("badge", true);
  document.title = `${isAlarm && !isCalm ? BADGES[state] : "Dashboard"} · secondlook`;
  setText("lead", describeCause(status).replaceAll(" %", "\u00a0%"));
  showIf("start", !decisions.images);
  showAction(chooseAction(status));
  showAlarms(open);
}

function describeCause({ state, problem, monitor, monitor_missing, decisions, policy }) {
  if (state === "problem") return problem;
  if (!decisions.images) return "No images yet: the service is ready for the first one.";
  if (!monitor) return monitor_missing;
  const { audit } = monitor;
  if (state === "undecided") return `The reviewed audits do not decide yet: their error rate is ${formatRange(audit.low, audit.high)}, and at most ${formatRate(policy.guarantee.risk)} is guaranteed.`;
  if (state !== "not checked yet" || monitor.in_burn_in) return monitor.verdict;
  if (!policy.guarantee) return "The policy has no guarantee to check; the images look like the calibration images.";
  const missing = monitor.audited ? `${countOf(monitor.audited - (audit?.labels ?? 0), "audit")} not reviewed` : "no image was selected for an audit";
  return `Nobody has checked the error rate: ${missing}. The images look like the calibration images.`;
}

// The one action: a link to the review page, or a command; and a sentence.
function chooseAction({ state, monitor, decisions, reviews, policy }) {
  const { waiting, audits } = reviews;
  const next = monitor?.next_step ?? "";
  const review = { link: `Review ${countOf(audits, "audit")}`, address: "/review?queue=audits", text: next };
  const again = calibrate ? { text: `${next} Then put it in force under Policies:`, command: calibrate } : { text: `${next} An administrator can calibrate.` };
  if (state === "problem") return { text: "See the log of the service." };
  if (!decisions.images) return {};
  if (!monitor) return calibrate ? { command: calibrate } : {};
  if (state === "broken" || (state === "images changed" && (!audits || monitor.audit?.verdict === "holds"))) return again;
  if (audits) return mayReview ? review : { text: next };
  if (state === "not checked yet" && policy.guarantee && policy.audit === null) return { text: "Select images for audits: restart the service with this option.", command: "--audit 0.05" };
  return waiting && mayReview ? { link: `Review ${countOf(waiting, "image")}`, address: "/review", text: next } : { text: next };
}

function showAction({ link = "", address = "", text = "", command = "" }) {
  for (const [id, content] of [["to-review", link], ["next", text.replaceAll(" %", "\u00a0%")]]) {
    setText(id, content);
    showIf(id, Boolean(content));
  }
  if (link) byId("to-review").href = address;
  byId("command").firstElementChild.textContent = command;
  showIf("command", Boolean(command));
}

// ---- Alarms

const describeAcknowledgment = ({ acknowledged_by: by, acknowledged_at: at, note }) => (by === null ? "" : `acknowledged by ${by}, ${formatMoment(at)}${note ? `: ${note}` : ""}`);

// Alarms are replaced only after a change, so that a note is not lost while it is written.
function showAlarms(open) {
  const list = byId("alarms");
  const state = JSON.stringify(open);
  if (list.dataset.state === state) return;
  list.dataset.state = state;
  list.replaceChildren(...open.map(makeAlarm));
}

function makeAlarm(alarm) {
  const item = byId("alarm").content.cloneNode(true).firstElementChild;
  const [form, details, name, about, result] = ["form", "details", "b", "span", "[role=status]"].map((one) => item.querySelector(one));
  const isSeen = alarm.acknowledged_by !== null;
  item.className = isSeen ? "guarantee" : "warning";
  name.textContent = ALARMS[alarm.kind];
  about.textContent = `since ${formatMoment(alarm.raised_at)}${isSeen ? `; ${describeAcknowledgment(alarm)}` : ""}`;
  if (isSeen) form?.remove();
  if (alarm.kind !== "shift") details?.remove();
  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    changeAlarm(result, `${alarm.kind}/acknowledge`, { note: form.elements.note.value.trim() || null });
  });
  details?.querySelector("button").addEventListener("click", () => changeAlarm(result, "shift/reset", {}));
  return item;
}

async function changeAlarm(result, action, content) {
  result.textContent = "Saving …";
  try {
    const headers = { "Content-Type": "application/json", "X-CSRF-Token": csrfToken };
    const response = await fetch(`/v1/alarms/${action}`, { method: "POST", headers, body: JSON.stringify(content) });
    result.textContent = response.ok ? "Saved; the page changes in a moment." : (await response.json()).error.message;
  } catch (error) {
    result.textContent = "The service does not respond; try again.";
  }
}

function showLog(alarms) {
  showTab("log", alarms.length > 0);
  const describeEnd = (one) => (one.resolved_at === null ? "open" : `${formatMoment(one.resolved_at)}${one.reset_by === null ? "" : `, reset by ${one.reset_by} after ${countOf(one.reset_after, "image")}`}`);
  fillRows(byId("log-rows"), alarms.map((one) => [one.text, formatMoment(one.raised_at), describeAcknowledgment(one) || "–", describeEnd(one)]), () => makeRow(4, []));
}

// ---- Risks on one scale

function showRisks({ policy, monitor }) {
  const limit = policy.guarantee?.risk ?? null;
  const { audit = null, recent } = monitor ?? {};
  const estimated = recent && recent.risk !== null ? { value: recent.risk, low: recent.risk_low, high: recent.risk_high } : null;
  showIf("meaning", true);
  drawRiskScale(byId("risk-scale"), { limit, guaranteed: limit, audited: audit, estimated });
  setText("guarantee-text", `Guarantee: ${policy.guarantee_text}.`);
  setText("reviewer-error", audit?.reviewer_error ? `, and valid for reviewer errors up to ${formatRate(audit.reviewer_error)}` : "");
}

// ---- Facts

// Each fact: name, value, details, and whether it is bad; with an address, the value is a link.
function listFacts(status) {
  const { throughput, reviews, decisions, monitor } = status;
  const { minute, hour } = throughput;
  const unit = flowUnit(minute.per_second);
  const hourly = `${formatFlow(hour.per_second)}${hour.per_second && flowUnit(hour.per_second) !== unit ? ` ${flowUnit(hour.per_second)}` : ""}`;
  const pace = status.reviews_per_minute === null ? "" : `, ${Number(status.reviews_per_minute.toPrecision(2))} per minute`;
  const expired = reviews.expired ? `; ${formatCount(reviews.expired)} removed before` : "";
  return [
    ["Throughput", formatFlow(minute.per_second), `${unit} in the last minute; last hour ${hourly}`],
    ["Images decided", formatCount(decisions.images), decisions.images ? `${Number(decisions.looks_per_image.toPrecision(3))} looks per image` : "none yet"],
    describeCoverage(decisions, monitor),
    ["Waiting for review", formatCount(reviews.waiting), `${formatCount(reviews.done)} done${pace}${expired}`, false, mayReview ? "/review" : null],
    ...listMonitorFacts(status),
  ];
}

function describeCoverage(decisions, monitor) {
  const { images, coverage } = monitor ?? decisions;
  const calibrated = monitor?.calibration_coverage ?? null;
  return ["Coverage", images ? formatRate(coverage) : "–", calibrated === null ? "share of accepted images" : `calibration ${formatRate(calibrated)}`];
}

function listMonitorFacts({ policy, monitor, alarms }) {
  if (!monitor) return [];
  const { shift, audit, unknown } = monitor;
  const verdict = audit?.labels ? `${audit.verdict}; ${formatCount(audit.labels)} reviewed, ${formatCount(audit.pending)} waiting${audit.cannot_tell ? `, ${formatCount(audit.cannot_tell)} 'cannot tell'` : ""}` : describeMissingAudits(policy, monitor);
  const resets = alarms.filter((one) => one.policy === policy.checksum && one.reset_by !== null).length;
  const reset = resets ? `; reset ${countOf(resets, "time")}` : "";
  const alarm = shift.raised ? ["raised", `after ${formatCount(shift.raised_at)} images`] : ["not raised", `evidence ${formatEvidence(shift.log10_evidence)} of ${formatEvidence(shift.log10_limit)}`];
  return [["Audits", formatCount(monitor.audited), verdict, audit?.verdict === "broken"], ["Shift alarm", alarm[0], `${alarm[1]}${reset}`, shift.raised], ...listUnknownFacts(unknown)];
}

function listUnknownFacts(unknown) {
  if (!unknown) return [];
  const { reviewed, share, low, high } = unknown;
  const counts = `${formatCount(unknown.none_of_these)} of ${formatCount(reviewed)} reviewed; ${formatCount(unknown.bad_images)} bad images, ${formatCount(unknown.cannot_tell)} 'cannot tell'`;
  const grown = unknown.raised ? `; grown, alarm after ${formatCount(unknown.raised_at)} images` : "";
  return [["None of the classes", reviewed ? formatRate(share) : "–", `${reviewed ? `${formatRange(low, high)}, ` : ""}${counts}${grown}`, unknown.raised]];
}

function describeMissingAudits(policy, monitor) {
  if (policy.audit === null && !monitor.audited) return "no audits; start with --audit 0.05";
  if (policy.guarantee === null) return "no guarantee to audit";
  return monitor.audited ? `${formatCount(monitor.audited)} waiting for review` : "no audits yet";
}

function showFacts(facts) {
  const list = byId("facts");
  while (list.children.length > facts.length) list.lastChild.remove();
  while (list.children.length < facts.length) list.append(html("div", {}, html("dt"), html("dd")));
  facts.forEach(([name, value, details, isBad = false, address = null], index) => {
    const box = list.children[index];
    box.className = isBad ? "bad" : "";
    const [term, description] = box.children;
    term.textContent = name;
    // Update only changed facts, so that a focused link keeps its focus.
    if (description.dataset.text === `${value}\n${details}`) return;
    description.dataset.text = `${value}\n${details}`;
    const link = description.querySelector("a");
    if (link) {
      link.textContent = value;
      description.querySelector("small").textContent = details;
    } else {
      const shown = address ? html("a", { href: address, "aria-label": `${value} ${name.toLowerCase()}: open the review page` }, value) : value;
      description.replaceChildren(shown, " ", html("small", {}, details));
    }
  });
}

// ---- The last hour

class ActivityPlot {
  constructor() {
    this.figure = byId("activity-plot");
    this.chart = null;
    this.shown = MINUTES - 1;
    this.isPointing = false;
    this.figure.addEventListener("pointermove", (event) => this.show(Math.floor(this.chart.valueAt(event.clientX)) + MINUTES));
    this.figure.addEventListener("pointerleave", () => this.hide());
    this.figure.addEventListener("focus", () => byId("activity-reading").setAttribute("aria-live", "polite"));
    this.figure.addEventListener("blur", () => {
      byId("activity-reading").removeAttribute("aria-live");
      this.hide();
    });
    this.figure.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity }[event.key];
      if (!steps) return;
      event.preventDefault();
      this.show(this.shown + steps);
    });
  }

  update(minutes) {
    this.minutes = minutes;
    const most = Math.max(4, ...minutes.map((one) => one.images));
    const spec = {
      height: 220,
      x: { min: -MINUTES, max: 0, ticks: [-60, -45, -30, -15, 0], label: "minutes before now", format: (value) => (value ? `−${-value}` : "0") },
      y: { min: 0, max: 1.08 * most, label: "images per minute", ticks: ticks(0, most, 5).filter(Number.isInteger), format: formatCount },
      draw: (chart) => this.draw(chart),
    };
    if (this.chart) this.chart.spec = spec;
    else {
      this.chart = new Chart(this.figure, spec);
      const entries = [["accepted", "accepted"], ["rejected", "rejected: to review"]];
      this.figure.append(html("ul", { class: "legend row" }, ...entries.map(([name, text]) => html("li", {}, html("span", { class: `swatch ${name}` }), text))));
    }
    this.chart.redraw();
    this.describe();
    if (this.isPointing) this.show(this.shown);
  }

  draw(chart) {
    this.bars = this.minutes.map((one, index) => {
      const [left, right] = [chart.x(index - MINUTES) + 0.5, chart.x(index - MINUTES + 1) - 0.5];
      const bar = (name, from, to) => svg("rect", { class: `bar-${name}`, x: left, width: Math.max(right - left, 1), y: chart.y(to), height: chart.y(from) - chart.y(to) });
      const bars = svg("g", {}, bar("accepted", 0, one.accepted), bar("rejected", one.accepted, one.images));
      chart.area.append(bars);
      return bars;
    });
    if (this.isPointing) this.bars[this.shown].setAttribute("class", "bar-marked");
  }

  describe() {
    const images = this.minutes.reduce((sum, one) => sum + one.images, 0);
    const accepted = this.minutes.reduce((sum, one) => sum + one.accepted, 0);
    setText("activity-caption", images ? `${formatCount(images)} images in the last hour, from all instances: ${formatCount(accepted)} accepted, ${formatCount(images - accepted)} rejected.` : "No images in the last hour.");
  }

  show(index) {
    this.bars[this.shown].removeAttribute("class");
    this.shown = Math.max(0, Math.min(MINUTES - 1, index));
    this.isPointing = true;
    this.bars[this.shown].setAttribute("class", "bar-marked");
    const { start, images, accepted } = this.minutes[this.shown];
    setText("activity-reading", `${formatClock(new Date(start))}: ${formatCount(images)} images, ${formatCount(accepted)} accepted, ${formatCount(images - accepted)} rejected`);
  }

  hide() {
    this.isPointing = false;
    this.bars?.[this.shown].removeAttribute("class");
    setText("activity-reading", "");
  }
}

// ---- Tables

function makeRow(columns, numbers) {
  const cells = Array.from({ length: columns }, (_, index) => (index ? html("td", numbers.includes(index) ? { class: "n" } : {}) : html("th", { scope: "row" })));
  return html("tr", {}, ...cells);
}

function showWrong(images) {
  showTab("wrong", images.length > 0);
  const list = byId("wrong-images");
  const state = JSON.stringify(images);
  if (list.dataset.state === state) return;
  list.dataset.state = state;
  list.replaceChildren(...images.map((one) => html("li", {}, makeWrongImage(one))));
}

function makeWrongImage(one) {
  const missing = html("div", { class: "missing" }, one.has_image && !mayReview ? "for reviewers" : "not stored");
  const picture = one.has_image && mayReview ? html("img", { src: `/v1/review/${one.number}/image`, alt: "", loading: "lazy" }) : missing;
  picture.addEventListener("error", () => picture.replaceWith(missing)); // removed in the meantime
  const lines = [
    html("small", { class: "file" }, one.id),
    html("small", {}, "predicted ", html("b", {}, one.predicted.join(", ")), `, confidence ${formatConfidence(one.confidence)}`),
    html("small", {}, "reviewed ", html("b", {}, String(one.label)), ` by ${one.reviewer}, ${formatMoment(one.reviewed_at)}`),
  ];
  return html(historyPage ? "a" : "div", { class: "tile", ...(historyPage ? { href: `${historyPage}#${one.number}` } : {}) }, picture, ...lines);
}

function showPolicies({ deployments, policy }) {
  showTab("policies", true);
  const latest = [...deployments].reverse();
  const lines = latest.map((one) => [
    `${formatMoment(one.deployed_at)}${one.deployment === policy.deployment ? " (now)" : ""}`,
    one.guarantee ? `at most ${formatRate(one.guarantee.risk)} errors, ${formatRate(1 - one.guarantee.delta)} confidence` : one.guarantee_text,
    `${one.method} ≥ ${Number(one.threshold.toPrecision(4))}, ${one.views === 1 ? "1 view" : `${one.views} views`}${one.is_adaptive ? ", adaptive" : ""}`,
    one.audit === null ? "none" : formatRate(one.audit),
    formatCount(one.images),
    one.coverage === null ? "–" : formatRate(one.coverage),
    one.checksum.slice(0, 8),
  ]);
  fillRows(byId("policy-rows"), lines, () => makeRow(7, [3, 4, 5]));
  byId("policy-rows").rows[0].className = "live";
}

function showInstance({ instance, policy, version }) {
  showTab("instance", true);
  const kept = instance.stores_images ? (instance.keep_seconds === null ? "without a time limit" : `for ${Number((instance.keep_seconds / 86400).toPrecision(3))} days`) : "never";
  const facts = [
    ["running since", formatMoment(instance.started_at)],
    ["pending images", `${formatCount(instance.images_waiting)} of at most ${formatCount(instance.max_waiting)}`],
    ["refused requests (queue full)", formatCount(instance.overloads)],
    ["failed requests (storage)", formatCount(instance.storage_failures)],
    ["stored review images", kept],
    ["classifier", policy.classifier],
    ["version", version],
  ];
  const list = byId("instance-facts");
  if (!list.children.length) list.append(...facts.flatMap(([name]) => [html("dt", {}, name), html("dd")]));
  facts.forEach(([, value], index) => {
    list.children[2 * index + 1].textContent = value;
  });
}

// ---- Timeline

let updateTimeline = null;
let drawn = "";
let drawnAt = -Infinity;

// State of the drawn plots; they are fetched again after a change, at most every `PLOT_ROUND` milliseconds.
const describeState = ({ policy, monitor }) => (monitor ? [policy.checksum, monitor.images, monitor.audit?.labels ?? 0, monitor.audit?.estimate ?? 0, monitor.unknown?.reviewed ?? 0, monitor.unknown?.none_of_these ?? 0].join() : "");
const wantsTimeline = (status) => describeState(status) !== drawn && performance.now() - drawnAt >= PLOT_ROUND;

function showTimeline(status) {
  const { monitor } = status;
  showTab("timeline", Boolean(monitor?.images));
  if (!monitor?.timeline || !monitor.images) return;
  for (const [name, text] of Object.entries(monitor.captions)) setText(`${name}-caption`, text.replaceAll(" %", "\u00a0%"));
  showIf("unknown", monitor.timeline.windows.some((one) => one.unknown !== null));
  byId("disagreement-plot").parentElement.hidden = !monitor.timeline.windows.some((one) => one.disagreement !== null);
  const timeline = { ...monitor.timeline, axis: makeTimeAxis(monitor.timeline) };
  if (updateTimeline) updateTimeline(timeline);
  else updateTimeline = startTimeline(timeline);
  [drawn, drawnAt] = [describeState(status), performance.now()];
}

const TIME_STEPS = [1, 5, 15, 60, 300, 900, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000, 31536000];
const DAY = 86400;

// The times of a stream as its x axis; null if all images came at once.
function makeTimeAxis({ windows, times, images }) {
  const [min, max] = [times[0], times.at(-1)];
  if (!(max - min >= 1)) return null;
  const knots = [...windows.map((one) => one.start), images];
  const place = (image) => {
    const next = Math.max(1, Math.min(firstAtLeast(knots, image), knots.length - 1));
    const share = (image - knots[next - 1]) / (knots[next] - knots[next - 1]);
    return times[next - 1] + share * (times[next] - times[next - 1]);
  };
  const step = TIME_STEPS.find((one) => (max - min) / one <= (window.innerWidth < 600 ? 4 : 8)) ?? TIME_STEPS.at(-1);
  const offset = 60 * new Date(1000 * max).getTimezoneOffset(); // ticks are even in local time
  const marks = ticks((min - offset) / step, (max - offset) / step, 9).filter(Number.isInteger).map((value) => value * step + offset);
  const format = (value) => ((value - offset) % DAY === 0 ? new Date(1000 * value).toLocaleDateString([], { month: "short", day: "numeric" }) : formatClock(new Date(1000 * value)));
  const describe = ({ from, to }) => `, ${MOMENTS.formatRange(1000 * from, 1000 * to)}`;
  return { place, describe, x: { min, max, label: "time", ticks: marks, format } };
}

// ---- Tabs

const tabs = [...document.querySelectorAll("[role=tab]")];
const panelOf = (tab) => byId(tab.getAttribute("aria-controls"));

function showTab(name, isShown) {
  showIf(name, isShown);
  showIf(`tab-${name}`, isShown);
}

// Selects the tab of the address, or the first one.
function selectTab() {
  const shown = tabs.filter((tab) => !tab.hidden);
  const selected = shown.find((tab) => `#${panelOf(tab).id}` === location.hash) ?? shown[0];
  for (const tab of tabs) {
    tab.setAttribute("aria-selected", tab === selected);
    tab.tabIndex = tab === selected ? 0 : -1;
    panelOf(tab).classList.toggle("current", tab === selected);
  }
}

function openTab(tab) {
  history.replaceState(null, "", `#${panelOf(tab).id}`); // unlike a link, without scrolling
  selectTab();
}

byId("tabs").addEventListener("click", (event) => tabs.includes(event.target) && openTab(event.target));
byId("tabs").addEventListener("keydown", (event) => {
  const shown = tabs.filter((tab) => !tab.hidden);
  const at = shown.indexOf(event.target);
  const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: -1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  shown.at(next % shown.length).focus();
  openTab(document.activeElement);
});
addEventListener("hashchange", selectTab);
// All panels are printed; the plots measure them in their own listeners, which come later.
for (const [name, isPrinting] of [["beforeprint", true], ["afterprint", false]]) addEventListener(name, () => document.body.classList.toggle("printing", isPrinting));

// ---- Rounds

const activity = new ActivityPlot();
let latest = null;
let answeredAt = null;

function show(status) {
  latest = status;
  showResult(status);
  showRisks(status);
  showFacts(listFacts(status));
  showTab("activity", true);
  activity.update(status.throughput.minutes);
  showTimeline(status);
  showWrong(status.monitor?.wrong_images ?? []);
  showLog(status.alarms ?? []);
  showPolicies(status);
  showInstance(status);
  showIf("tabs", true);
  selectTab();
  setText("updated", `updated ${new Date(status.time).toLocaleTimeString()}`);
}

async function askForStatus(withTimeline) {
  const response = await fetch(`/v1/status?timeline=${withTimeline}`, { signal: AbortSignal.timeout(PATIENCE) });
  if (response.status === 401) location.reload(); // the session has ended; this opens the login page
  const content = await response.json();
  return response.ok ? content : Promise.reject(new RefusedError(content.error.message));
}

// An error with a message from the service.
class RefusedError extends Error {}

async function look() {
  try {
    let status = await askForStatus(latest === null);
    if (!status.monitor?.timeline && wantsTimeline(status)) status = await askForStatus(true);
    answeredAt = new Date();
    showIf("connection", false);
    show(status);
  } catch (error) {
    const since = answeredAt ? ` since ${answeredAt.toLocaleTimeString()}; the numbers below are from that time` : "";
    setText("connection", error instanceof RefusedError ? `No new numbers${since}: ${error.message}` : `The service does not respond${since}. Retrying …`);
    showIf("connection", true);
    if (!latest) setText("lead", "The numbers will appear here.");
  }
}

let timer = null;

async function keepLooking() {
  clearTimeout(timer);
  if (!document.hidden) await look();
  timer = setTimeout(keepLooking, ROUND);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) keepLooking();
});

// ---- Another policy

async function changePolicy(event) {
  event.preventDefault();
  const result = byId("policy-result");
  result.className = "";
  setText("policy-result", "Checking …");
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": csrfToken };
  try {
    const response = await fetch("/v1/policy", { method: "POST", headers, body: byId("policy-file").files[0] });
    const content = await response.json();
    result.className = response.ok ? "good" : "bad";
    setText("policy-result", response.ok ? `In force: ${content.guarantee_text}, checksum ${content.checksum.slice(0, 8)}.` : content.error.message);
  } catch (error) {
    result.className = "bad";
    setText("policy-result", "The service does not respond; try again.");
  }
}

byId("policy-form")?.addEventListener("submit", changePolicy);
setText("first-image", `curl ${byId("first-image").dataset.header}--data-binary @photo.jpg ${location.origin}/v1/decide`);
document.querySelectorAll(".scroll").forEach(markOverflow);
keepLooking();
