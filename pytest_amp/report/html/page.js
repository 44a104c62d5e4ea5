"use strict";
(() => {
  const theme = document.getElementById("theme");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  theme.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });

  const table = document.getElementById("table");
  if (!table) return;
  const all = JSON.parse(document.getElementById("data").textContent).rows;
  const order = JSON.parse(document.getElementById("verdicts").textContent);
  const VERDICT = 0, FAMILY = 1, TARGET = 2, NAME = 3, KIND = 4, BEFORE = 6, SHARE = 7, BECAUSE = 8, TEST = 9;
  const heads = ["verdict", "family", "device and dtype", "name", "kind", "now", "before", "of allowed", "because"];
  const empty = (column) => all.every((row) => row[column] === "" || row[column] === null);
  const columns = [...heads.keys()].filter((column) => ![BEFORE, SHARE, BECAUSE].includes(column) || !empty(column));
  const PAGE = 200;
  const state = { sort: -1, down: false, shown: PAGE };
  const text = all.map((row) => row.join("\u0000").toLowerCase());

  const selects = { verdict: VERDICT, family: FAMILY, target: TARGET };
  for (const [id, column] of Object.entries(selects)) {
    const select = document.getElementById(id);
    const values = [...new Set(all.map((row) => row[column]))];
    values.sort(column === VERDICT ? (a, b) => order.indexOf(a) - order.indexOf(b) : undefined);
    for (const value of values) select.append(new Option(value, value));
    select.addEventListener("change", () => restart());
  }
  const query = document.getElementById("query");
  query.addEventListener("input", () => restart());
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  const more = document.getElementById("more");
  more.addEventListener("click", () => { state.shown += 5 * PAGE; draw(); });

  const headRow = table.tHead.rows[0];
  columns.forEach((column) => {
    const cell = document.createElement("th");
    const button = document.createElement("button");
    cell.scope = "col";
    button.type = "button";
    button.textContent = heads[column];
    button.addEventListener("click", () => {
      state.down = state.sort === column ? !state.down : column === SHARE;
      state.sort = column;
      restart();
    });
    cell.append(button);
    headRow.append(cell);
  });

  function compare(left, right) {
    const [a, b] = [left[state.sort], right[state.sort]];
    const [none, nothing] = [a === null || a === "", b === null || b === ""];
    if (none || nothing) return none - nothing;  // what is empty comes last, whichever way
    let found;
    if (state.sort === VERDICT) found = order.indexOf(a) - order.indexOf(b);
    else if (typeof a === "number" && typeof b === "number") found = a - b;
    else if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    else found = a < b ? -1 : a > b ? 1 : 0;
    return state.down ? -found : found;
  }

  function selected() {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = Object.entries(selects).map(([id, column]) => [column, document.getElementById(id).value]);
    const rows = all.filter((row, index) =>
      wanted.every(([column, value]) => !value || row[column] === value) && words.every((word) => text[index].includes(word)));
    if (state.sort >= 0) rows.sort(compare);
    return rows;
  }

  // Issues and pull requests, as pytest_amp/report/inline.py knows them.
  const ISSUE = /(?<![\w./-])([A-Za-z0-9][\w-]*\/[\w.-]+)#([0-9]+)\b/g;

  function appendLinked(cell, text) {
    let end = 0;
    for (const found of text.matchAll(ISSUE)) {
      const link = document.createElement("a");
      link.href = `https://github.com/${found[1]}/issues/${found[2]}`;
      link.textContent = found[0];
      cell.append(text.slice(end, found.index), link);
      end = found.index + found[0].length;
    }
    cell.append(text.slice(end));
  }

  function cellOf(row, column) {
    const cell = document.createElement("td");
    const value = row[column];
    if (column === VERDICT) {
      const badge = document.createElement("span");
      badge.className = `badge v-${value}`;
      badge.textContent = value;
      cell.append(badge);
    } else if (column === SHARE) {
      cell.className = "number";
      cell.textContent = typeof value === "number" ? `${(100 * value).toFixed(1)} %` : value === null ? "" : value;
    } else if (column === BECAUSE) {
      cell.className = "because";
      appendLinked(cell, value);
    } else {
      cell.textContent = value;
      if (typeof value === "number") cell.className = "number";
      if (column === FAMILY || column === TARGET || column === KIND) cell.className = "word";
      if (column === NAME) { cell.className = "name"; cell.title = row[TEST]; }
    }
    return cell;
  }

  function draw() {
    const rows = selected();
    const body = document.createElement("tbody");
    for (const row of rows.slice(0, state.shown)) {
      const line = body.insertRow();
      for (const column of columns) line.append(cellOf(row, column));
    }
    table.tBodies[0].replaceWith(body);
    [...headRow.cells].forEach((cell, place) => {
      if (columns[place] === state.sort) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    document.getElementById("count").textContent =
      `${Math.min(state.shown, rows.length)} of ${rows.length} shown, ${all.length} in all`;
    more.hidden = rows.length <= state.shown;
  }

  function restart() { state.shown = PAGE; draw(); }
  draw();
})();
