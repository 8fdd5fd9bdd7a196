"use strict";
const kinds = ["paper", "method", "data", "state"];
const columns = ["paper", "method", "data", "seed", "state", "rounds", "measure", "value"];
const numbers = new Set(["seed", "rounds", "value"]);
const find = (id) => document.getElementById(id);
const ticked = new Set();
let runs = [], before = "", sorted = null, up = true;

function shown(run, name) {
  const value = run[name];
  if (name === "state" && run.problem) return `damaged: ${run.problem}`;
  if (value === null || value === undefined) return "-";
  if (name === "value") return value.toPrecision(4);
  if (name === "rounds" && run.state !== "finished" && value <= run.asked) {
    return `${value} of ${run.asked}`;
  }
  return String(value);
}

function cell(tag, text, name) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (numbers.has(name)) made.className = "number";
  return made;
}

function row(run) {
  const made = document.createElement("tr");
  made.className = run.state;
  made.dataset.run = run.id;
  const box = document.createElement("input");
  Object.assign(box, { type: "checkbox", name: "run", value: run.id, checked: ticked.has(run.id) });
  box.setAttribute("aria-label", `compare ${run.name}`);
  box.disabled = run.state === "damaged";
  box.addEventListener("change", () => box.checked ? ticked.add(run.id) : ticked.delete(run.id));
  const first = document.createElement("td");
  first.append(box);
  const head = document.createElement("th");
  head.scope = "row";
  const link = document.createElement("a");
  link.href = `/run/${run.id}`;
  link.textContent = run.name;
  head.append(run.state === "damaged" ? run.name : link);
  made.append(first, head, ...columns.map((name) => cell("td", shown(run, name), name)));
  return made;
}

function chosen() {
  const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = runs.filter((run) => {
    const text = ["name", ...columns].map((name) => shown(run, name)).join(" ").toLowerCase();
    return words.every((word) => text.includes(word))
      && kinds.every((kind) => !find(`of-${kind}`).value || find(`of-${kind}`).value === run[kind]);
  });
  if (!sorted) return kept;
  const way = up ? 1 : -1;
  const order = (a, b) => {
    const [x, y] = [a[sorted], b[sorted]];
    if (x === null || y === null) return (x === null) - (y === null);
    return way * (typeof x === "number" && typeof y === "number" ? x - y
      : String(x).localeCompare(String(y), undefined, { numeric: true }));
  };
  return kept.sort(order);
}

function draw() {
  const kept = chosen();
  find("rows").replaceChildren(...kept.map(row));
  const training = runs.filter((run) => run.state === "training").length;
  const unread = runs.filter((run) => run.state === "unread").length;
  find("told").textContent = `${kept.length} of ${runs.length} runs, ${training} being trained`
    + (unread ? `, ${unread} still to be read.` : ".");
}

function offer() {
  for (const kind of kinds) {
    const list = find(`of-${kind}`), kept = list.value;
    const known = [...new Set(runs.map((run) => run[kind]).filter((name) => name !== null))].sort();
    const options = known.map((name) => new Option(name, name));
    list.replaceChildren(new Option("all", ""), ...options);
    list.value = known.includes(kept) ? kept : "";
  }
}

async function look() {
  try {
    const text = await (await fetch("/runs.json")).text();
    if (text !== before) {
      before = text;
      runs = JSON.parse(text);
      offer();
      draw();
    }
  } catch {
    find("told").textContent = "coterie ui does not answer: start it again.";
    before = "";
  }
  setTimeout(look, runs.some((run) => run.state === "unread") ? 50 : 2000);
}

for (const button of document.querySelectorAll("[data-sort]")) {
  button.addEventListener("click", () => {
    up = sorted === button.dataset.sort ? !up : true;
    sorted = button.dataset.sort;
    for (const head of document.querySelectorAll("thead th")) head.removeAttribute("aria-sort");
    button.parentElement.setAttribute("aria-sort", up ? "ascending" : "descending");
    draw();
  });
}
find("search").addEventListener("input", draw);
for (const kind of kinds) find(`of-${kind}`).addEventListener("change", draw);
look();
