// One image in a dialog: its history, and a form to correct the label.
"use strict";
function makeRecord({ onCorrected }) {
  const { find, make, titleOf, timeOf } = elements;
  const dialog = find("record"), form = find("record-form"), label = find("record-label"), comment = find("record-comment");
  const { reviewer, may } = dialog.dataset;
  const isAdmin = may === "administer";
  const ACTIONS = {
    label: "labeled", correct: "corrected to", decide: "decided", import: "imported", escalate: "asked for a second opinion",
    undo: "took back", withdraw: "withdrawn:",
  };
  let number = null, classes = null;

  async function open(item) {
    number = item.number;
    find("record-title").textContent = titleOf(item);
    find("record-id").textContent = item.name && item.name !== item.id ? item.id : "";
    find("record-image").replaceChildren(item.image ? make("img", { src: `/v1/review/${number}/image`, alt: titleOf(item) }) : "");
    find("record-events").replaceChildren();
    [label.value, comment.value, find("record-fault").textContent] = ["", "", ""];
    form.hidden = true;
    dialog.showModal();
    await Promise.all([loadClasses(), loadEvents()]).catch(showFault);
  }

  async function loadClasses() {
    if (classes) return;
    const found = await server.get("/v1/review/classes");
    classes = found.classes ?? [];
    find("record-classes").replaceChildren(...[...classes, ...(found.answers ?? [])].map((value) => make("option", { value })));
  }

  async function loadEvents() {
    const { events } = await server.get(`/v1/review/${number}/history`);
    find("record-events").replaceChildren(...events.map((event) => make("li", {}, ...describe(event))));
    if (!events.length) find("record-events").append(make("li", { className: "small", textContent: "No label yet." }));
    form.hidden = !isAdmin && !events.some((event) => event.by === reviewer && event.label !== null);
  }

  function describe(event) {
    const shown = event.class ?? event.label ?? "";
    const comment = event.comment ? make("q", { textContent: event.comment }) : "";
    return [make("b", { textContent: event.by ?? "" }), ` ${ACTIONS[event.action] ?? event.action} `, make("b", { textContent: shown }), " ", comment,
      make("time", { textContent: timeOf(event.at) })];
  }

  const showFault = (error) => { find("record-fault").textContent = error.message; };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = label.value.trim();
    const value = classes.includes(text) ? classes.indexOf(text) : !classes.length && /^\d+$/.test(text) ? Number(text) : text;
    find("record-save").disabled = true;
    try {
      await server.post(`/v1/review/${number}/correct`, { label: value, comment: comment.value.trim() || null });
      onCorrected(number, value);
      dialog.close();
      elements.say(`Corrected to ${text}.`);
    } catch (error) {
      showFault(error);
    }
    find("record-save").disabled = false;
  });
  find("record-close").addEventListener("click", () => dialog.close());

  return { open, loadClasses };
}
