// The page: reads pictures and shows their decisions. Texts from files are set as text, never as HTML.

import { Decider, DeciderError, startRuntime } from "./decider.js";
import { PictureError, readPicture, toImageData } from "./pictures.js";

const DEFAULT_DECIDER = "decide.onnx";
const SAMPLES = "samples.json"; // paths of pictures; optional
const MOST_LIKELY = 5;
const SMALL = 128; // smaller pictures are enlarged in whole pixels

const find = (id) => document.getElementById(id);
const ADVICE = {
  "": "A person should check this picture.",
  unsure: "Unsure: a person should check this picture.",
  unfamiliar: "Unfamiliar: it looks unlike the known pictures. A person should check it.",
};
const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

let runtime = null; // a promise of ONNX Runtime Web
let decider = null;
let queue = Promise.resolve(); // one thing after another
let newest = 0; // number of the newest picture

// --- Loading deciders ---

async function fetchDecider(address) {
  const response = await fetch(address).catch(() => null);
  if (!response?.ok) {
    throw new DeciderError(`There is no exported file at “${address}”; write one with “secondlook export”, or choose a file.`);
  }
  const total = Number(response.headers.get("Content-Length"));
  const parts = [];
  let received = 0;
  for (const reader = response.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    received += value.length;
    showStatus(`Loading the file: ${megabytes(received)} …`, total ? received / total : null);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

async function useDecider(name, readBytes) {
  showProblem(null);
  document.body.classList.add("busy");
  showStatus("Loading the file …", null);
  try {
    const bytes = await readBytes();
    showStatus("Starting ONNX Runtime …", null);
    runtime ??= startRuntime();
    const loaded = await Decider.load(await runtime, bytes, name);
    await decider?.release();
    decider = loaded;
    clearDecision();
    showDecider();
  } catch (error) {
    showProblem(error);
  }
  showIdle();
}

// --- Deciding ---

function decideAbout(file) {
  const number = ++newest;
  queue = queue.then(() => (number === newest ? decideNow(file) : null)); // only the newest picture matters
}

async function decideNow(file) {
  showProblem(null);
  document.body.classList.add("busy");
  if (find("result").hidden) showStatus("Looking …", null);
  try {
    if (!decider) throw new DeciderError("No exported file is loaded; choose a file written by “secondlook export”.");
    const picture = await readPicture(file, decider.record.image_shape);
    const decision = await decider.decide(picture);
    showPicture(file, picture);
    showDecision(decision);
  } catch (error) {
    showProblem(error);
  }
  showIdle();
}

// --- Showing ---

function showProblem(error) {
  if (error) clearDecision(); // an old decision beside an error would be mistaken for that of the new picture
  const known = error instanceof DeciderError || error instanceof PictureError;
  find("problem").textContent = !error || known ? error?.message ?? "" : `Error: ${error.message ?? error}`;
  find("problem").hidden = !error;
}

/** Shows a status text and the completed share of the work; null if it is unknown, undefined for no progress bar. */
function showStatus(text, share) {
  find("status").hidden = false;
  find("status-text").textContent = text;
  find("progress").hidden = share === undefined;
  if (share) find("progress").value = share;
  else find("progress").removeAttribute("value");
}

function showIdle() {
  document.body.classList.remove("busy");
  for (const id of ["file", "choose", "shoot"]) find(id).disabled = decider === null;
  find("samples").hidden = decider === null || !find("sample-list").children.length;
  showStatus(decider ? "Ready: drop, choose or paste a picture." : "No file is loaded.");
  find("status").hidden = !find("result").hidden;
}

function clearDecision() {
  for (const id of ["result", "facts", "details", "picture", "seen", "note"]) find(id).hidden = true;
  find("invitation").hidden = false;
}

/** Offers the pictures of the list beside the page, if there is one. */
async function offerSamples() {
  const response = await fetch(SAMPLES).catch(() => null);
  const paths = response?.ok ? await response.json() : [];
  find("sample-list").replaceChildren(...paths.map((path, place) => {
    const button = element("button", "", "sample");
    const image = document.createElement("img");
    [image.src, image.alt] = [path, `sample ${place + 1}`];
    button.type = "button";
    button.append(image);
    button.addEventListener("click", async () => {
      const blob = await (await fetch(path)).blob();
      decideAbout(new File([blob], path, { type: blob.type }));
    });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
}

function showDecider() {
  const { policy, record, file } = decider;
  const { calibration } = policy;
  const guarantee = decider.describeGuarantee();
  const [title, text] = guarantee
    ? ["Guarantee: ", guarantee]
    : ["Nothing is guaranteed", record.mismatch ? `: ${record.mismatch}` : " about accepted pictures"];
  find("guarantee").replaceChildren(element("strong", title), `${text}.`);
  find("guarantee").classList.toggle("warning", !guarantee);
  find("guarantee").hidden = false;
  const [height, width, channels] = record.image_shape;
  const facts = {
    File: `${file.name}, ${megabytes(file.size)}`,
    Classifier: policy.classifier.name,
    Classes: record.classes,
    Input: `${width ?? "any"} × ${height ?? "any"} pixels, ${channels === 1 ? "gray" : "color"}`,
    Looks: record.adaptive ? `${policy.views.length} at most, fewer for clear decisions` : policy.views.length,
    Method: policy.method,
    Calibration: calibration && `${calibration.images.toLocaleString("en")} labeled images, ${calibration.accepted.toLocaleString("en")} accepted`,
    Made: policy.made,
    Checksum: `${policy.checksum} (it detects damage, not forgery)`,
  };
  const rows = Object.entries(facts).filter(([, fact]) => fact).flatMap(([name, fact]) => [element("dt", name), element("dd", String(fact))]);
  find("provenance").replaceChildren(...rows);
  find("about").hidden = false;
}

function showPicture(file, { bitmap, note }) {
  const picture = find("picture");
  URL.revokeObjectURL(picture.src);
  picture.src = URL.createObjectURL(file);
  picture.alt = file.name;
  picture.hidden = false;
  picture.classList.toggle("pixelated", note === null && Math.max(bitmap.width, bitmap.height) <= SMALL);
  find("invitation").hidden = true;
  find("note").textContent = note ?? "";
  find("note").hidden = find("seen").hidden = note === null;
  const canvas = find("pixels");
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
}

function showDecision(decision) {
  const { accept, rejection, labels, confidence, threshold, looks, views, milliseconds } = decision;
  find("decision").classList.toggle("accepted", accept);
  setData("accept", accept, accept ? "ACCEPT" : "REVIEW");
  find("mark").textContent = accept ? "✓" : "?";
  setData("class", labels.join(" "), labels.map((label) => decider.nameClass(label)).join(" or "));
  find("advice").textContent = accept ? "The prediction can be accepted." : ADVICE[rejection];
  setData("confidence", confidence, formatNumber(confidence));
  find("needed").textContent = threshold === null ? "never accepted with this class" : `needed ${formatNumber(threshold)}`;
  showMeter(confidence, threshold);
  setData("looks", looks, looks);
  find("of-looks").textContent = looks < views.length ? `of ${views.length} were enough` : `of ${views.length}`;
  find("time").textContent = milliseconds < 1000 ? `${Math.max(1, Math.round(milliseconds))} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
  showLikely(decision);
  showViews(decision);
  for (const id of ["result", "facts", "details"]) find(id).hidden = false;
}

/** Shows confidence and threshold on a scale, if both are between 0 and 1. */
function showMeter(confidence, threshold) {
  const isShare = (value) => value !== null && value >= 0 && value <= 1;
  find("meter").hidden = !isShare(confidence);
  find("level").style.setProperty("--share", confidence);
  find("threshold").hidden = !isShare(threshold);
  find("threshold").style.setProperty("--share", threshold);
}

function showLikely({ labels, probabilities }) {
  const fromFirst = decider.policy.predict_from === "image" ? "; the prediction is that of the first look" : "";
  find("average").textContent = `Mean over the looks${fromFirst}.`;
  const order = Array.from(probabilities.keys()).sort((one, other) => probabilities[other] - probabilities[one]);
  find("likely").replaceChildren(...order.slice(0, MOST_LIKELY).map((label) => {
    const row = document.createElement("li");
    row.append(element("span", decider.nameClass(label), "name"), element("span", percent(probabilities[label])));
    row.classList.toggle("predicted", labels.includes(label));
    row.style.setProperty("--share", probabilities[label]);
    return row;
  }));
}

function showViews({ label, looks, views, viewPixels }) {
  const agreeing = views.filter((view) => view.label === label).length;
  find("votes").textContent = `${agreeing} of ${looks} ${looks === 1 ? "look" : "looks"} predicted ${decider.nameClass(label)}.`;
  find("views").replaceChildren(...views.map((view, number) => {
    const tile = document.createElement("li");
    const isTaken = view.label !== null;
    if (viewPixels) tile.append(drawView(toImageData(viewPixels, number)));
    tile.append(element("span", isTaken ? decider.nameClass(view.label) : "not needed", "name"));
    if (isTaken) tile.append(element("span", percent(view.probability), "share"));
    tile.append(element("small", view.text));
    tile.className = isTaken ? (view.label === label ? "" : "differs") : "not-taken";
    tile.title = view.text;
    return tile;
  }));
}

function drawView(image) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.classList.toggle("pixelated", Math.max(image.width, image.height) <= SMALL);
  canvas.ariaHidden = "true"; // the text beside it says the same
  return canvas;
}

function element(tag, text, className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

function setData(id, value, text) {
  find(id).value = value;
  find(id).textContent = text;
}

const formatNumber = (value) => (Math.abs(value) < 10 ? value.toFixed(4) : value.toPrecision(5));

// --- User input ---

function loadDecider(file) {
  queue = queue.then(() => useDecider(file.name, async () => new Uint8Array(await file.arrayBuffer())));
}

function take([file]) {
  if (file?.name.endsWith(".onnx")) loadDecider(file);
  else if (file) decideAbout(file);
}

for (const [id, use] of [["file", decideAbout], ["camera", decideAbout], ["decider", loadDecider]]) {
  find(id).addEventListener("change", ({ target }) => {
    if (target.files.length) use(target.files[0]);
    target.value = ""; // so that the same file can be chosen again
  });
}
for (const [button, input] of [["choose", "file"], ["shoot", "camera"], ["replace", "decider"]]) {
  find(button).addEventListener("click", () => find(input).click());
}
document.addEventListener("paste", (event) => take(event.clipboardData.files));
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dragging");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) document.body.classList.remove("dragging");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dragging");
  take(event.dataTransfer.files);
});

const address = new URLSearchParams(location.search).get("model") ?? DEFAULT_DECIDER;
queue = queue.then(offerSamples).then(() => useDecider(address, () => fetchDecider(address)));
