// The frame: header, notes, tabs, the side card, keys, the address, and a server that is asked again.

const both = () => runs.length > 1 && runs[1].comparison;
const WITH_HEADS = ["overview", "training", "compare", "depths", "writers"];
const TABS = [
  ["depths", "Depths", () => run().tabs.depths && heads(), drawDepths],
  ["writers", "Writers", () => run().tabs.writers && heads(), drawWriters],
  ["overview", "Overview", () => run().tabs.overview, drawOverview], ["training", "Training", () => run().tabs.training, drawTraining],
  ["plan", "Plan", () => run().tabs.plan, drawPlan],
  ["lengths", "Lengths", () => run().tabs.lengths, drawLengths], ["canonical", "Canonical", () => run().tabs.canonical, drawCanonical],
  ["theory", "Theory", () => run().tabs.theory, drawVerdicts("theory")], ["ledger", "Ledger", () => run().tabs.ledger, drawVerdicts("ledger")], ["compare", "Compare", both, drawCompare],
  ["tables", "Tables", () => run().tabs.tables, drawTables], ["measured", "How it was measured", () => true, drawMeasured],
];
/** Tabs of experiments that this page has no drawing for: sentences and tables. */
const plainTabs = () => Object.entries(run().tabs).filter(([id]) => !TABS.some(([known]) => known === id))
  .map(([id, tab]) => [id, tab.title || id, () => true, (panel) => panel.append(...(tab.sentences || []).length ? [sentences(tab.sentences, { class: "said" })] : [], ...(tab.tables || []).map(tableSection))]);
const available = () => [...plainTabs(), ...TABS.filter(([, , has]) => has())];

function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const which = Number(given.get("run"));
  if (given.has("run") && runs[which - 1]) state.run = which - 1;
  if (given.has("tab")) state.tab = given.get("tab");
  if (given.has("step") && Number.isFinite(Number(given.get("step")))) state.step = Number(given.get("step"));
  if (!heads()) { state.head = knownHead(given.get("head")) ? given.get("head") : null; return; }
  const tau = heads().taus.findIndex((one) => Math.abs(one - Number(given.get("tau"))) <= 1e-9 * one);
  if (given.has("tau") && tau >= 0) state.tau = tau;
  state.head = headIndex(given.get("head")) >= 0 ? given.get("head") : null;
  state.pins = readPins(given.get("pins"));
}

function writeHash() {
  const parts = [];
  if (state.head) parts.push("head=" + state.head);
  if (heads()) parts.push("tau=" + short(tauNow()));
  if (state.tab === "training" && state.step !== null) parts.push("step=" + state.step);
  if (state.run) parts.push("run=" + (state.run + 1));
  if (state.pins.size) parts.push("pins=" + encodeURIComponent(JSON.stringify(Object.fromEntries(state.pins))));
  parts.push("tab=" + state.tab);
  const hash = "#" + parts.join("&");
  if (hash !== location.hash && location.protocol !== "about:") history.replaceState(null, "", hash); // a frame in a notebook has no address
}

/** Whether there is such a head: on the overview, or followed over training. */
function knownHead(name) { return headIndex(name) >= 0 || trackedHead(name) >= 0; }

function notes() {
  const now = run(), made = [];
  const block = (kind, title, lines) => {
    if (!lines.length) return;
    const rest = lines.length > 1 ? " (and " + (lines.length - 1) + " more)" : "";
    made.push(el("details", { class: kind }, el("summary", {}, title + rest + ": " + lines[0]), sentences(lines)));
  };
  block("running", "Running", now.running || []);
  block("problems", "Missing", now.problems);
  block("warnings", "Careful", now.warnings);
  return made;
}

function frame() {
  const app = document.getElementById("app"), now = run();
  const search = el("input", { type: "search", id: "search", placeholder: "head, as L12H0", "aria-label": "Find a head, as layer:head", list: null,
    onkeydown: (event) => { if (event.key === "Enter" && find(event.target)) event.target.blur(); }, onchange: (event) => find(event.target) });
  const choice = runs.length > 1 ? el("select", { "aria-label": "Run", onchange: (event) => { state.run = Number(event.target.value); build(); } },
    runs.map((one, k) => el("option", { value: k, selected: k === state.run }, (k + 1) + ": " + one.name))) : null;
  const theme = el("button", { type: "button", id: "theme", "aria-label": "Switch between light and dark", onclick: () => setTheme(isDark() ? "light" : "dark") }, "◐");
  app.replaceChildren(
    el("header", { class: "top" }, el("h1", {}, now.title || "No run"), answered(), el("span", { class: "what" }, about()), choice, heads() || series() ? search : null, content.home ? el("a", { href: content.home, id: "home" }, "all runs") : null, theme),
    el("div", { class: "second" }, el("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the report" }), el("div", { class: "notes", role: "note", id: "notes" }, notes())),
    el("div", { class: "body" }, el("main", { class: "panel", id: "panel", role: "tabpanel", tabindex: "-1" }), el("aside", { class: "side", id: "side", "aria-label": "Head card" })));
  document.title = (now.title || "No run") + " · rotoscope";
}

/** What kind of run it is, its name, its state and its day. */
function about() {
  const now = run(), going = now.complete ? null : (now.running || []).length ? "running" : "not finished";
  return [now.kind, now.name, going, now.written ? String(now.written).slice(0, 10) : null].filter(Boolean).join(" · ");
}

/** How well the model does the task it was looked at on, and what guessing gives. */
function answered() {
  const found = heads() && heads().accuracy;
  if (!found) return null;
  const share = (x) => Math.round(100 * x) + " %";
  return el("span", { class: "answered", id: "answered" }, el("b", {}, share(found.accuracy)), " of " + found.answers + " answers right" + (missing(found.chance) ? "" : ", chance " + share(found.chance)));
}

function drawTabs() {
  const list = document.querySelector(".tabs");
  list.replaceChildren(...available().map(([name, label]) => el("button", {
    type: "button", role: "tab", id: "tab-" + name, "aria-selected": String(name === state.tab), "aria-controls": "panel", tabindex: name === state.tab ? "0" : "-1",
    onclick: () => { state.tab = name; show(); document.getElementById("tab-" + name).focus(); },
  }, label)));
}

/** Draw the tab that is chosen. */
function show() {
  const names = available().map(([name]) => name);
  if (!names.includes(state.tab)) state.tab = names.includes("compare") ? "compare" : names[0];
  drawTabs();
  const panel = document.getElementById("panel"), draw = available().find(([name]) => name === state.tab)[3];
  panel.replaceChildren();
  panel.setAttribute("aria-labelledby", "tab-" + state.tab);
  document.getElementById("app").classList.toggle("app-fixed", WITH_HEADS.includes(state.tab) && !(state.tab === "compare" && runs[1].comparison.plan));
  draw(panel);
  drawSide();
  drawAll();
  writeHash();
}

function drawSide() {
  const side = document.getElementById("side");
  side.hidden = !heads() || !WITH_HEADS.includes(state.tab) || (state.tab !== "overview" && !state.head);
  if (side.hidden) { side.replaceChildren(); return; }
  const k = headIndex(state.head);
  side.replaceChildren(...(k >= 0 ? headCard(k) : summaryCard()).filter((one) => one !== null));
  side.scrollTop = 0;
}

/** Choose a head, or none. */
function choose(name) {
  if (name !== null && !knownHead(name)) return;
  state.head = name;
  state.swap = null;
  drawSide();
  redrawSide();
  remark();
  writeHash();
}

function redrawSide() {
  for (const one of [...pictures]) {
    if (!one.root.isConnected) forget(one);
    else if (one.root.closest("#side")) one.draw();
  }
}

function find(field) {
  const match = /^\s*L?\s*(\d+)\s*(?:[:., ]|\s*H)\s*(\d+)\s*$/i.exec(field.value), name = match && headName(Number(match[1]), Number(match[2]));
  const known = name !== null && knownHead(name);
  field.setAttribute("aria-invalid", String(field.value !== "" && !known));
  field.setCustomValidity(field.value === "" || known ? "" : "There is no head " + field.value + "; heads are written 12:0, 12.0 or L12H0.");
  if (field.value !== "" && !known) { field.reportValidity(); return false; }
  if (!known) return false;
  if (!WITH_HEADS.includes(state.tab)) { state.tab = heads() ? "overview" : "training"; state.head = name; show(); } else if (name !== state.head) choose(name);
  return true;
}

/** Go on to a neighbour: so many layers up, so many heads along. */
function walk(layers, along) {
  const tab = heads(), k = headIndex(state.head);
  if (k < 0) { choose(headName(tab.layer[0], tab.head[0])); return; }
  if (along) { const next = k + along; if (tab.layer[next] !== undefined) choose(headName(tab.layer[next], tab.head[next])); return; }
  choose(headName(tab.layer[k] + layers, tab.head[k]));
}

const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target, field = target.closest && target.closest("input, select, textarea");
  if (event.key === "Escape") {
    const large = document.querySelector(".large");
    if (large) { setLarge(large, false); return; }
    if (field) field.blur(); if (state.head) choose(null);
    return;
  }
  if (field && field.type !== "range") return;
  if (event.key === "/" && document.getElementById("search")) { event.preventDefault(); const search = document.getElementById("search"); search.focus(); search.select(); return; }
  if (target.closest && target.closest('[role="tablist"]') && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
    const names = available().map(([name]) => name), next = names[(names.indexOf(state.tab) + (event.key === "ArrowRight" ? 1 : names.length - 1)) % names.length];
    state.tab = next; show(); document.getElementById("tab-" + next).focus(); event.preventDefault(); return;
  }
  if (ARROWS[event.key] && heads() && WITH_HEADS.includes(state.tab) && !(target.closest && target.closest(".grid-wrap"))) { event.preventDefault(); walk(...ARROWS[event.key]); }
});

const dark = window.matchMedia("(prefers-color-scheme: dark)");
function isDark() { return state.theme ? state.theme === "dark" : dark.matches; }
function setTheme(theme) {
  state.theme = theme;
  document.documentElement.dataset.theme = theme;
  drawAll();
}
dark.addEventListener("change", () => { if (!state.theme) drawAll(); });
window.addEventListener("hashchange", () => { readHash(); build(); });

function build() {
  if (heads()) { state.tau = Math.min(state.tau, heads().taus.length - 1); if (headIndex(state.head) < 0) state.head = null; }
  frame();
  show();
}

/** Ask the server for what is new; draw again only if something is. */
let before = content.live ? JSON.stringify(runs) : "";
async function ask() {
  try {
    const answer = await fetch(content.live, { cache: "no-store" });
    if (answer.ok) await renew(await answer.json());
  } catch (problem) { /* the server is away; the page stays as it is and asks again */ }
  if (runs.some((one) => !one.complete)) setTimeout(ask, 2000);
}

async function renew(fresh) {
  const now = JSON.stringify(fresh);
  if (now === before) return;
  await inflate(fresh);
  const tabs = () => available().map(([name]) => name), had = tabs();
  before = now;
  runs = fresh;
  state.run = Math.min(state.run, Math.max(0, runs.length - 1));
  if (state.tab === had[0] && tabs()[0] !== had[0]) state.tab = null; // a run that had nothing to show has something now
  if (state.tab === "training" && tabs().join() === had.join() && training.renew()) {
    const open = new Set([...document.querySelectorAll("#notes details[open]")].map((one) => one.className));
    document.getElementById("notes").replaceChildren(...notes());
    document.querySelectorAll("#notes details").forEach((one) => { one.open = open.has(one.className); });
    document.querySelector(".top .what").textContent = about();
    return;
  }
  const focused = document.activeElement && document.activeElement.id;
  build();
  if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
}

inflate(runs).catch(() => {
  for (const one of runs) if (one.tabs.overview && one.tabs.overview.shown) one.tabs.overview.shown = { why: "this browser cannot unpack it" };
}).then(() => {
  readHash();
  build();
  if (content.live) setTimeout(ask, 2000);
});
