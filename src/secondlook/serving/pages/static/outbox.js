// Labels and other operations on their way to the server, in order.
//
// Each stays in IndexedDB until the server confirms it, so it survives a closed tab, and is sent again if it may not have arrived; requests are
// idempotent. Entries belong to a reviewer of a service, and to a tab: it holds a Web Lock as long as it is open. Then another tab of the
// same reviewer takes them over, so that an operation never has two senders. Without locks (HTTP on another host) it takes them at once.
"use strict";
function makeOutbox({ owner, onChange, onTrouble, onSettled, onRefused, onAdopted, leaseSeconds }) {
  const LONGEST_PAUSE = 4000;
  const SLOW = 2000; // an operation that takes longer is shown as not saved yet
  const DATABASE = "secondlook", STORE = "outbox";
  const tab = [...crypto.getRandomValues(new Uint32Array(4))].join("-");
  const awaited = new Set([tab]); // tabs whose operations this tab has or will take over
  const entries = []; // { key, owner, tab, kind, number, body, attempts, isShown }
  let stamp = 0;
  let wake = () => {};

  const opening = new Promise((resolve) => {
    try {
      const request = indexedDB.open(DATABASE, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "key" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
    } catch {
      resolve(null); // without storage, operations are only kept in memory
    }
  });

  // Returns the result of a request to the store, or undefined.
  async function access(mode, act) {
    const database = await opening;
    return database && new Promise((resolve) => {
      const transaction = database.transaction(STORE, mode, { durability: "strict" });
      const request = act(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = transaction.onabort = () => resolve(undefined);
    });
  }

  const save = (entry) => access("readwrite", (store) => store.put({ ...entry, isShown: false }));
  const listStored = async (chosen) => ((await access("readonly", (store) => store.getAll())) ?? []).filter((one) => one.owner === owner && one.tab === chosen);

  function add(operation) {
    stamp = Math.max(stamp + 1, Date.now());
    const entry = { ...operation, key: [stamp, tab], owner, tab, attempts: 0 };
    entries.push(entry);
    save(entry);
    setTimeout(onChange, SLOW + 50);
    onChange();
    send();
  }

  const isSlow = () => entries[0].attempts > 1 || Date.now() - entries[0].key[0] > SLOW;

  function remove(entry) {
    if (entries.includes(entry)) entries.splice(entries.indexOf(entry), 1);
    access("readwrite", (store) => store.delete(entry.key));
  }

  // Takes back the latest operation of a kind on an image; false if it may have been sent.
  function retract(number, kind) {
    const entry = entries.findLast((one) => one.number === number && one.kind === kind);
    if (entry?.attempts !== 0) return false;
    remove(entry);
    onChange();
    return true;
  }

  const pause = (milliseconds) => new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    wake = () => { clearTimeout(timer); resolve(); };
  });

  let isSending = false;
  async function send() {
    if (isSending) return;
    isSending = true;
    let wait = 250;
    while (entries.length) {
      const [entry] = entries;
      entry.attempts += 1;
      save(entry);
      try {
        const content = await server.post(`/v1/review/${entry.number}/${entry.kind}`, entry.body);
        remove(entry);
        onSettled(entry, content);
        onTrouble(null);
        wait = 250;
      } catch (error) {
        const trouble = server.findTrouble(error);
        if (trouble === null) {
          entries.filter((one) => one.number === entry.number).forEach(remove);
          onRefused(entry, error);
        } else {
          if (["logged out", "outdated"].includes(trouble)) await server.renewToken(leaseSeconds());
          if (trouble !== "outdated" || entry.attempts > 2) onTrouble(trouble);
          if (trouble === "moved") postpone(entry.number);
          onChange();
          await pause(wait);
          wait = Math.min(2 * wait, LONGEST_PAUSE);
        }
      }
    }
    isSending = false;
    onChange();
  }

  // Lets the operations on other images go first.
  function postpone(number) {
    entries.sort((one, other) => (one.number === number) - (other.number === number));
  }

  // Takes over the operations of closed tabs; of open ones, as soon as they are closed.
  async function takeOver() {
    const stored = (await access("readonly", (store) => store.getAll())) ?? [];
    for (const other of new Set(stored.filter((one) => one.owner === owner).map((one) => one.tab))) {
      if (awaited.has(other)) continue;
      awaited.add(other);
      hold(other, () => adopt(other));
    }
  }

  async function adopt(other) {
    const found = await listStored(other);
    if (!found.length) return;
    for (const entry of found) {
      Object.assign(entry, { tab, attempts: 1 }); // it may have arrived
      entries.push(entry);
      await save(entry);
    }
    server.expectMove(leaseSeconds());
    onAdopted(found.map((one) => one.number));
    send();
  }

  // Calls a function while no other page holds the lock of a tab.
  const hold = (name, act) => (navigator.locks ? navigator.locks.request(`${DATABASE}.${STORE}.${name}`, act) : act());

  async function open() {
    if (navigator.locks) await new Promise((resolve) => { hold(tab, () => { resolve(); return new Promise(() => {}); }); });
    takeOver();
  }

  window.addEventListener("beforeunload", (event) => { if (entries.length) event.preventDefault(); });

  return { entries, add, retract, isSlow, open, takeOver, pause, wake: () => wake(), isSending: () => isSending };
}
