// The dashboard: fetches the numbers every few seconds, and redraws the plots when they change.
"use strict";

const ROUND = 3000;
const PLOT_ROUND = 6000;
const PATIENCE = 15000;
const MINUTES = 60;
const mayReview = byId("to-review") !== null;

// Percent with three significant digits, as in the monitor texts.
const formatRate = (share) => `${Number((100 * share).toPrecision(3))}\u00a0%`;
const formatRange = (low, high) => `${formatRate(low)} to ${formatRate(high)}`;
const formatFlow = (perSecond) => (perSecond === 0 || perSecond >= 0.095 ? Number(perSecond.toPrecision(2)).toString() : Number((60 * perSecond).toPrecision(2)).toString());
const flowUnit = (perSecond) => (perSecond === 0 || perSecond >= 0.095 ? "images per second" : "images per minute");
const formatMoment = (text) => new Date(text).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
const formatClock = (date) => date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

function setText(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

function showIf(id, isShown) {
  byId(id).hidden = !isShown;
}

// ---- Result

function describeBadge({ monitor, decisions }) {
  if (!decisions.images) return ["unknown", "Ready"];
  if (!monitor) return ["unknown", "– Not monitored"];
  if (monitor.alarm) return ["bad", "▲ Alarm"];
  return monitor.in_burn_in ? ["unknown", "… Too few images"] : ["good", "✓ No alarm"];
}

function showResult(status) {
  const { monitor, decisions } = status;
  const [kind, text] = describeBadge(status);
  byId("badge").className = `badge ${kind}`;
  setText("badge", text);
  showIf("badge", true);
  document.title = `${monitor?.alarm ? "▲ Alarm" : "Dashboard"} · secondlook`;
  const verdict = monitor ? monitor.verdict : status.monitor_missing;
  setText("lead", decisions.images || !monitor ? verdict.replaceAll(" %", "\u00a0%") : "No images yet: the service is ready for the first one.");
  byId("next").className = monitor?.alarm ? "warning" : "guarantee";
  setText("next", monitor ? `Next: ${monitor.next_step}` : "");
  showIf("next", Boolean(monitor) && decisions.images > 0);
  showIf("start", !decisions.images);
  if (!mayReview) return;
  const { waiting, audits } = status.reviews;
  showIf("to-review", waiting > 0);
  showIf("to-audits", audits > 0);
  setText("to-audits", `Review ${formatCount(audits)} ${audits === 1 ? "audit" : "audits"}`);
}

// Each fact: name, value, details, and whether it is bad; with an address, the value is a link.
function listFacts(status) {
  const { throughput, reviews, decisions, policy, monitor } = status;
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
    ...listGuaranteeFacts(policy, monitor),
  ];
}

function describeCoverage(decisions, monitor) {
  const { images, coverage } = monitor ?? decisions;
  const calibrated = monitor?.calibration_coverage ?? null;
  return ["Coverage", images ? formatRate(coverage) : "–", calibrated === null ? "share of accepted images" : `calibration ${formatRate(calibrated)}`];
}

function listGuaranteeFacts(policy, monitor) {
  const { guarantee } = policy;
  const guaranteed = guarantee
    ? ["Guaranteed risk", `at most ${formatRate(guarantee.risk)}`, `failure probability ${guarantee.delta}`]
    : ["Guaranteed risk", "none", policy.guarantee_text === "none" ? "by this policy" : policy.guarantee_text];
  if (!monitor) return [guaranteed];
  const { shift, recent, audit } = monitor;
  const estimated =
    recent && recent.risk !== null
      ? ["Estimated risk", formatRate(recent.risk), `${recent.risk_low === null ? "" : `${formatRange(recent.risk_low, recent.risk_high)}, `}latest ${formatCount(recent.images)} images`, guarantee !== null && (recent.risk_low ?? 0) > guarantee.risk]
      : ["Estimated risk", "–", monitor.images ? "unknown for this policy" : "no images yet"];
  const audited = audit?.labels
    ? ["Audited risk", formatRange(audit.low, audit.high), `${audit.verdict}; ${formatCount(audit.labels)} reviewed, ${formatCount(audit.pending)} waiting${audit.cannot_tell ? `, ${formatCount(audit.cannot_tell)} 'cannot tell'` : ""}`, audit.verdict === "broken"]
    : ["Audited risk", "–", describeMissingAudits(policy, monitor)];
  const alarm = shift.raised
    ? ["Shift alarm", "raised", `after ${formatCount(shift.raised_at)} images`, true]
    : ["Shift alarm", "not raised", `evidence ${formatEvidence(shift.log10_evidence)} of ${formatEvidence(shift.log10_limit)}`];
  return [guaranteed, audited, estimated, alarm, ...listUnknownFacts(monitor.unknown)];
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
  return monitor.audited ? `${formatCount(monitor.audited)} audits waiting for review` : "no audits yet";
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
  showIf("wrong", images.length > 0);
  const lines = images.map((one) => [one.id, one.predicted.join(", "), String(one.label), formatConfidence(one.confidence), one.disagreement === null ? "–" : formatMean(one.disagreement)]);
  fillRows(byId("wrong-rows"), lines, () => makeRow(5, [3, 4]));
}

function showPolicies({ deployments, policy }) {
  showIf("policies", true);
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
  showIf("instance", true);
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
  showIf("timeline", Boolean(monitor?.images));
  if (!monitor?.timeline || !monitor.images) return;
  for (const [name, text] of Object.entries(monitor.captions)) setText(`${name}-caption`, text.replaceAll(" %", "\u00a0%"));
  showIf("unknown", monitor.timeline.windows.some((one) => one.unknown !== null));
  byId("disagreement-plot").parentElement.hidden = !monitor.timeline.windows.some((one) => one.disagreement !== null);
  if (updateTimeline) updateTimeline(monitor.timeline);
  else updateTimeline = startTimeline(monitor.timeline);
  [drawn, drawnAt] = [describeState(status), performance.now()];
}

// ---- Rounds

const activity = new ActivityPlot();
let latest = null;
let answeredAt = null;

function show(status) {
  latest = status;
  showResult(status);
  showFacts(listFacts(status));
  showIf("activity", true);
  activity.update(status.throughput.minutes);
  showTimeline(status);
  showWrong(status.monitor?.wrong_images ?? []);
  showPolicies(status);
  showInstance(status);
  setText("problem", status.problem ?? "");
  showIf("problem", Boolean(status.problem));
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
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": document.querySelector("meta[name=csrf-token]")?.content ?? "" };
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
