// Polls the state every few seconds, and reloads the page when it has changed, with the state in which its reader left it.
(() => {
  "use strict";
  const EVERY_MS = 3000, bar = document.getElementById("live"), key = "icekeep " + location.pathname + location.search;
  const show = (name, text) => {
    const part = document.getElementById("live-" + name);
    if (part.textContent !== text) { part.textContent = text; }
  };
  const parts = () => [...document.querySelectorAll("details")];
  const nameOf = (part) => (part.querySelector("h3") || part.querySelector("summary")).textContent;
  const inputs = () => [...document.querySelectorAll("input")];
  const links = () => [...document.querySelectorAll("a, button, summary")];
  const heads = () => [...document.querySelectorAll("th")];

  const keep = () => {
    const sorted = heads().findIndex((head) => head.ariaSort && head.querySelector("button"));
    sessionStorage.setItem(key, JSON.stringify({
      open: parts().filter((part) => part.open).map(nameOf),
      inputs: inputs().map((input) => input.value),
      sorted, down: sorted >= 0 && heads()[sorted].ariaSort,
      focus: links().indexOf(document.activeElement), text: (document.activeElement || bar).textContent,
      x: scrollX, y: scrollY,
    }));
  };
  const restore = () => {
    const kept = JSON.parse(sessionStorage.getItem(key) || "null");
    sessionStorage.removeItem(key);
    if (!kept) { return; }
    for (const part of parts()) { part.open = kept.open.includes(nameOf(part)); }
    inputs().forEach((input, at) => {
      if (kept.inputs[at]) {
        input.value = kept.inputs[at];
        input.dispatchEvent(new Event("input"));
      }
    });
    const head = heads()[kept.sorted];
    for (let tries = 0; head && head.ariaSort !== kept.down && tries < 2; tries += 1) { head.querySelector("button").click(); }
    const same = links().filter((link) => link.textContent === kept.text);
    const focus = same.includes(links()[kept.focus]) ? links()[kept.focus] : same[0];
    if (kept.focus >= 0 && focus) { focus.focus({ preventScroll: true }); }
    scrollTo(kept.x, kept.y);
  };
  const again = () => {
    keep();
    // The numbers of tables in links are those of their order, which may be another one now.
    history.replaceState(null, "", location.pathname + location.search);
    location.reload();
  };
  // A reader who is typing or selecting text is not disturbed.
  const isBusy = () => document.activeElement instanceof HTMLInputElement || !getSelection().isCollapsed;

  let timer = 0;
  const ask = async () => {
    clearTimeout(timer);
    let wait = EVERY_MS;
    try {
      const answer = await fetch("/state", { cache: "no-store", credentials: "same-origin" });
      if (answer.status === 403) {
        show("wrong", "The server was restarted: open the address that it printed.");
        return;
      }
      const state = await answer.json();
      for (const name of ["refreshed", "running", "wrong"]) { show(name, state[name]); }
      if (String(state[bar.dataset.page]) !== bar.dataset.version && !isBusy()) {
        again();
        return;
      }
    } catch {
      show("wrong", "The server does not answer; this is the last state that it sent.");
      wait *= 3;
    }
    if (!document.hidden) { timer = setTimeout(ask, wait); }
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { ask(); } });

  for (const part of document.querySelectorAll("details.table")) {
    const link = document.createElement("a"), line = document.createElement("p");
    link.href = "/runs?table=" + encodeURIComponent(nameOf(part));
    link.textContent = "Runs on this table";
    line.append(link);
    part.querySelector(".inside").prepend(line);
  }
  restore();
  ask();
})();
