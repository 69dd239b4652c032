// Sorting within protocols, filters, and what a circle of the figure stands for; without it the page is whole as well.
"use strict";

const $ = (id) => document.getElementById(id);
const rows = [...document.querySelectorAll("tbody tr:not(.group)")];
const points = [...document.querySelectorAll("#figure [data-method]")];
const FILTERS = ["method", "network", "protocol", "status"];

// ---- Sorting --------------------------------------------------------------------------------------------------------

function value(row, column) {
  const text = row.cells[column].dataset.value ?? "";
  return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
}

function compare(a, b, sign) {
  if (a === "" || b === "") return (a === "") - (b === ""); // what is not known comes last, either way
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), "en", { numeric: true });
}

function sort(header) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const first = header.classList.contains("number") ? "descending" : "ascending";
  const other = first === "ascending" ? "descending" : "ascending";
  const order = header.ariaSort === first ? other : first;
  for (const each of table.querySelectorAll("th[aria-sort]")) each.ariaSort = each === header ? order : "none";
  const sign = order === "ascending" ? 1 : -1;
  for (const body of table.tBodies) {
    const [group, ...own] = body.rows; // figures of other protocols stay where they are
    own.sort((a, b) => compare(value(a, column), value(b, column), sign));
    body.append(group, ...own);
  }
}

// ---- Filters --------------------------------------------------------------------------------------------------------

function fits(row, chosen, text) {
  const data = row.dataset;
  const same = ([name, wanted]) => wanted === "" || data[name].split("\n").includes(wanted);
  return chosen.every(same) && data.text.includes(text);
}

function refresh() {
  const chosen = FILTERS.map((name) => [name, $(name).value]);
  const text = $("query").value.trim().toLowerCase();
  let shown = 0;
  for (const row of rows) {
    row.hidden = !fits(row, chosen, text);
    shown += !row.hidden;
  }
  for (const body of document.querySelectorAll("tbody")) body.hidden = ![...body.rows].slice(1).some((row) => !row.hidden);
  for (const board of document.querySelectorAll(".board")) {
    board.hidden = ![...board.querySelectorAll("tbody")].some((body) => !body.hidden);
  }
  const [[, method], , , [, status]] = chosen;
  for (const point of points) {
    const of = point.dataset;
    const away = (method && of.method !== method) || (status && of.status && of.status !== status);
    point.classList.toggle("away", Boolean(away));
  }
  $("count").textContent = `${shown} of ${rows.length} rows`;
  $("nothing").hidden = shown > 0;
}

// ---- The page -------------------------------------------------------------------------------------------------------

for (const header of document.querySelectorAll("th[aria-sort]")) {
  header.querySelector("button").addEventListener("click", () => sort(header));
}
for (const name of FILTERS) $(name).addEventListener("change", refresh);
$("query").addEventListener("input", refresh);
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (["INPUT", "SELECT"].includes(document.activeElement.tagName)) return;
  event.preventDefault();
  $("query").focus();
});
for (const point of document.querySelectorAll("#figure .point")) {
  for (const happened of ["focus", "pointerenter"]) {
    point.addEventListener(happened, () => { $("summary").textContent = point.getAttribute("aria-label"); });
  }
}
refresh();
