"use strict";
// The page works without: this sorts and searches the list, opens the part that a link leads to, and copies commands.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const value = (row, at) => {
    const cell = row.cells[at], told = cell.dataset.v;
    return told === undefined ? cell.textContent : Number(told);
  };
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const old = head.getAttribute("aria-sort");
      const isNumber = head.classList.contains("n") && at !== 1;
      const down = old ? old === "ascending" : isNumber;
      const rows = [...body.rows].map((row) => [value(row, at), row]);
      rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
      body.append(...rows.map(([, row]) => row));
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  });
  if (body.rows.length > 8) {
    const tools = document.createElement("div"), label = document.createElement("label"), input = document.createElement("input");
    const told = document.createElement("span");
    tools.className = "tools";
    label.textContent = "Find a table";
    input.type = "search";
    told.className = "soft";
    told.setAttribute("role", "status");
    label.append(input);
    tools.append(label, told);
    table.parentElement.before(tools);
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      let count = 0;
      for (const row of body.rows) {
        row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
        count += row.hidden ? 0 : 1;
      }
      told.textContent = wanted ? count + " of " + body.rows.length : "";
    });
  }
}
const parts = [...document.querySelectorAll("details.table")];
const open = () => {
  const part = location.hash.startsWith("#t-") && document.getElementById(location.hash.slice(1));
  if (part) {
    part.closest("details").open = true;
    part.closest("details").scrollIntoView();
    part.focus({ preventScroll: true });
  }
};
addEventListener("hashchange", open);
open();
// A second click on the link that was followed last changes no address.
document.addEventListener("click", (event) => {
  const link = event.target.closest && event.target.closest('a[href^="#t-"]');
  if (link && link.hash === location.hash) { open(); }
});
if (parts.length > 1) {
  const tools = document.createElement("div");
  tools.className = "tools";
  for (const [text, isOpen] of [["Open all", true], ["Close all", false]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => parts.forEach((part) => { part.open = isOpen; }));
    tools.append(button);
  }
  parts[0].before(tools);
}
const commands = document.querySelectorAll(".command");
const said = document.createElement("div");
said.className = "sr";
said.setAttribute("role", "status");
for (const command of commands) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy " + command.textContent.trim());
  command.append(button);
}
if (commands.length) { document.body.append(said); }
document.addEventListener("click", async (event) => {
  const button = event.target.closest && event.target.closest("button.copy");
  if (!button) { return; }
  const code = button.previousElementSibling;
  let done = "Copied";
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // There is no clipboard on a page that came over plain HTTP, nor where the browser refuses it.
    getSelection().selectAllChildren(code);
    done = "Selected";
  }
  said.textContent = done;
  button.textContent = done;
  setTimeout(() => { button.textContent = "Copy"; said.textContent = ""; }, 2000);
});
