// Requests to the server, and what their errors mean.
"use strict";
const server = (() => {
  const TIMEOUT = 20000;
  let token = document.querySelector("meta[name=csrf-token]")?.content ?? "";
  let movedUntil = 0; // until then, images may be reserved for the last login

  async function request(path, options) {
    const response = await fetch(path, { ...options, signal: AbortSignal.timeout(TIMEOUT) });
    const content = await response.json().catch(() => null);
    if (response.ok && content) return content;
    const { code = "", message = `the server responds with status ${response.status}` } = content?.error ?? {};
    // A proxy may respond with its own page and status 200: nothing was saved then.
    throw Object.assign(new Error(message), { status: response.ok ? 502 : response.status, code });
  }

  const get = (path) => request(path, { headers: { Accept: "application/json" } });

  const post = (path, body = {}) => request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": token },
    body: JSON.stringify(body),
  });

  // Classifies an error: "away", "logged out", "outdated", "moved", or null if the request itself was refused.
  function findTrouble(error) {
    if (error.status === undefined || error.status >= 500 || [408, 429].includes(error.status)) return "away";
    if (error.code === "csrf") return "outdated";
    if (error.code === "lease_lost" && isMoving()) return "moved";
    return [401, 403].includes(error.status) ? "logged out" : null;
  }

  // After a new login in another tab, this page needs the token of the new session.
  async function renewToken(leaseSeconds) {
    try {
      const response = await fetch(location.pathname + location.search, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(TIMEOUT) });
      const found = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("meta[name=csrf-token]")?.content ?? token;
      if (found !== token) expectMove(leaseSeconds);
      token = found;
    } catch {
      // The next attempt shows the error.
    }
  }

  // Images may still be reserved for an earlier login of the same reviewer.
  function expectMove(leaseSeconds) {
    movedUntil = Date.now() + 1000 * leaseSeconds + 4000;
  }

  const isMoving = () => Date.now() < movedUntil;

  return { TIMEOUT, get, post, findTrouble, renewToken, expectMove, isMoving };
})();
