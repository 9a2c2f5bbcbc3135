// The page of reviewers: agreement, estimated error, speed, and withdrawal of all labels of a reviewer.
"use strict";
(() => {
  const { find, make, countOf, plural, say } = elements;
  const mayWithdraw = find("reviewers").dataset.mayWithdraw === "true";
  const FAST_SHARE = 0.2; // from this share of labels in less than a second on, it stands out
  const percentOf = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);
  const numberOf = (value) => (value === null ? "–" : value.toFixed(2));
  let chosen = null;

  async function load() {
    try {
      render(await server.get("/v1/review/agreement"));
    } catch (error) {
      find("error-text").textContent = error.message;
    }
  }

  function render({ reviewers, pairs, classes, alpha, error }) {
    renderError(error);
    find("reviewers").replaceChildren(...reviewers.map(makeReviewer));
    find("pairs").replaceChildren(...pairs.map((one) => makeRow(one.reviewers.join(", "), countOf(one.images), percentOf(one.agreement), numberOf(one.kappa))));
    const ordered = [...classes].sort((one, other) => one.agreement - other.agreement);
    find("classes").replaceChildren(...ordered.map((one) => makeRow(one.class ?? `class ${one.label}`, countOf(one.pairs), percentOf(one.agreement))));
    find("alpha").textContent = alpha === null ? "" : `Krippendorff’s α is ${numberOf(alpha)}; 1 means that all labels agree, 0 that they agree as by chance.`;
    find("agreement").hidden = !pairs.length;
  }

  function renderError({ images, disagreements, estimate, low, high, bound, exceeded }) {
    const stated = bound ? `the stated bound is ${percentOf(bound)}` : "labels are taken as the truth";
    find("error-text").textContent = estimate === null
      ? `The error rate of reviewers is unknown; ${stated}.`
      : `A reviewer errs in about ${percentOf(estimate)} of the images; ${stated}.`;
    find("error-text").classList.toggle("warning", exceeded);
    const about = `95 % interval: ${percentOf(low)} to ${percentOf(high)}, from ${plural(disagreements, "disagreement", "disagreements")} in ${plural(images, "image", "images")} with two labels.`;
    const advice = exceeded ? " The bound is exceeded: train the reviewers, or restart the service with a larger bound (--reviewer-error)." : "";
    find("error-details").textContent = images ? about + advice : "Label images twice to estimate it: restart the service with --double-review 0.1.";
  }

  function makeRow(head, ...cells) {
    return make("tr", {}, make("th", { scope: "row", textContent: head }), ...cells.map((cell) => make("td", { className: "number" }, cell)));
  }

  function makeReviewer(one) {
    const seconds = one.seconds === null ? "–" : `${one.seconds.toFixed(1)} s`;
    const row = makeRow(one.name, countOf(one.labels), countOf(one.pairs), percentOf(one.agreement), seconds, percentOf(one.fast));
    row.lastChild.classList.toggle("warn", one.fast >= FAST_SHARE);
    if (!mayWithdraw) return row;
    const button = make("button", { type: "button", className: "button", textContent: "Withdraw …", ariaLabel: `Withdraw all labels of ${one.name}` });
    button.addEventListener("click", () => ask(one));
    row.append(make("td", {}, button));
    return row;
  }

  function ask(one) {
    chosen = one.name;
    find("confirm-title").textContent = `Withdraw ${plural(one.labels, "label", "labels")} of ${one.name}?`;
    find("confirm-fault").textContent = "";
    find("confirm").showModal();
  }

  find("withdraw").addEventListener("click", async () => {
    try {
      const { withdrawn } = await server.post(`/v1/review/reviewers/${encodeURIComponent(chosen)}/withdraw`);
      find("confirm").close();
      say(`Withdrawn: ${plural(withdrawn, "label", "labels")} of ${chosen}.`);
      await load();
    } catch (error) {
      find("confirm-fault").textContent = error.message;
    }
  });

  load();
})();
