// Elements and texts, shared by the pages for reviewers.
"use strict";
const elements = (() => {
  const find = (id) => document.getElementById(id);
  const countOf = (count) => count.toLocaleString("en");
  const plural = (count, one, many) => `${countOf(count)} ${count === 1 ? one : many}`;
  const shareOf = (share) => (share > 0 && share < 0.005 ? "<1\u00a0%" : `${Math.round(100 * share)}\u00a0%`);
  const titleOf = (item) => item.name ?? item.id;
  const timeOf = (text) => new Date(text).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });

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

  // A value that may be missing: stored by the browser, unless it forbids that.
  function recall(storage, key, otherwise) {
    try {
      return JSON.parse(window[storage].getItem(key)) ?? otherwise;
    } catch {
      return otherwise;
    }
  }

  function remember(storage, key, value) {
    try {
      window[storage].setItem(key, JSON.stringify(value));
    } catch {
      // It is forgotten when the page is closed.
    }
  }

  return { find, countOf, plural, shareOf, titleOf, timeOf, make, say, recall, remember };
})();
