// What everything else uses: the content, the state, elements made of text, numbers as words, files to keep.

const content = JSON.parse(document.getElementById("content").textContent);
/** In a site a run is named, and its data are in a script of their own. */
let runs = content.runs.map((one) => typeof one === "string" ? window.rotoscopeData[one] : one);

const { classes: COLOURS, symbols: SYMBOLS, series: PALETTE, measures: HUES, verdicts: VERDICTS, query: QUERY, swapped: SWAPPED, block: BLOCK } = content.palette;
const CLASSES = Object.keys(COLOURS);
/** Pale by day is loud by night: the style sheet knows both. */
Object.defineProperty(COLOURS, "mixed", { enumerable: true, get: () => colour("mixed") });

const state = {
  run: 0, tab: null, tau: 0, head: null, measure: "class", classes: new Set(CLASSES), low: null, high: null,
  stability: "all", mass: null, swap: null, pins: new Map(), further: false, series: 0, step: null, log: null, experiment: 0, verdict: null, theme: null,
};

function run() { return runs[state.run] || { tabs: {}, problems: ["there is no run"], warnings: [], settings: {}, versions: {}, timings: {} }; }

/** An element. Children that are no elements become text, never markup. */
function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    made.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return made;
}

/** A word with what it means on hover. */
const term = (text, meaning) => meaning ? el("abbr", { title: meaning }, text) : text;

/** Sentences: a list of several, and no lonely bullet. */
const sentences = (texts, own = {}) => texts.length === 1 ? el("p", own, texts[0]) : el("ul", own, texts.map((text) => el("li", {}, text)));

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

const missing = (x) => x === null || x === undefined;
const number = (x, digits = 3) => missing(x) ? "–" : typeof x !== "number" ? String(x)
  : Number.isInteger(x) ? String(x) : Math.abs(x) >= 0.001 ? x.toFixed(digits) : x.toExponential(1);
const angle = (x) => x > 0 ? String(Number(x.toPrecision(2))) : "NoPE";
/** A number in a table: the same decimals down a column of measures, none in a column of counts. */
const cell = (x, whole) => whole || x === 0 ? String(x) : Math.abs(x) >= 100 ? x.toFixed(1) : Math.abs(x) >= 0.001 ? x.toFixed(3) : x.toExponential(1);
const fixed = (x, digits = 2) => missing(x) ? "–" : x.toFixed(digits);
const short = (tau) => tau.toExponential().replace("e+", "e");
const headName = (layer, head) => layer + ":" + head;
const words = (name) => name.replaceAll("_", " ");

/** A file for the reader to keep, made here. */
function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Text that can be taken along with one click. */
function copyable(text) {
  const code = el("code", {}, text);
  const button = el("button", { type: "button", class: "copy", "aria-label": "Copy: " + text, onclick: async () => {
    try { await navigator.clipboard.writeText(text); } catch (refused) {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  } }, "copy");
  return el("span", { class: "copyable" }, code, button);
}

/** A word as a shell takes it. */
const quoted = (text) => /^[A-Za-z0-9_.:/@%+=,-]+$/.test(text) ? text : "'" + String(text).replaceAll("'", "'\\''") + "'";

/** A part of the page that can fill the window, and come back. */
function enlarge(part) {
  return el("button", { type: "button", class: "enlarge", "aria-label": "Make this part large", "aria-pressed": String(part.classList.contains("large")), onclick: (event) => setLarge(part, !part.classList.contains("large"), event.currentTarget) }, "⤢");
}
function setLarge(part, large, button) {
  document.querySelectorAll(".large").forEach((one) => one.classList.remove("large"));
  part.classList.toggle("large", large);
  (button || part.querySelector(".enlarge")).setAttribute("aria-pressed", String(large));
}

function csvText(names, rows) {
  const cell = (x) => {
    if (missing(x)) return "";
    let text = String(x);
    if (typeof x === "string" && /^[=+\-@\t]/.test(text)) text = "'" + text; // a spreadsheet must not compute a name
    return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  return [names, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function fileName(what) {
  const base = (run().name || "run") + "-" + what;
  return base.replace(/[^A-Za-z0-9._-]+/g, "-").slice(0, 80);
}

function csvButton(what, table) {
  return el("button", {
    type: "button", "aria-label": "Download the table behind " + what + " as CSV",
    onclick: () => { const { names, rows } = table(); download(fileName(what) + ".csv", csvText(names, rows), "text/csv"); },
  }, "CSV");
}

/** Packed numbers, unpacked once. */
const unpacked = new WeakMap();
function unpack(packed) {
  if (unpacked.has(packed)) return unpacked.get(packed);
  const raw = atob(packed.data);
  const bytes = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) bytes[k] = raw.charCodeAt(k);
  const codes = packed.bits === 16 ? new Uint16Array(bytes.buffer) : bytes;
  const last = packed.bits === 16 ? 65535 : 255;
  const at = (k) => codes[k] === last ? null : packed.low + codes[k] * packed.step;
  unpacked.set(packed, at);
  return at;
}

/** Where each head stands in a list of layers and heads, looked up once. */
const placed = new WeakMap();
function places(list) {
  if (!placed.has(list)) placed.set(list, new Map(list.layer.map((layer, k) => [headName(layer, list.head[k]), k])));
  return placed.get(list);
}

/** A table to read and sort. `go(row)` is called when a row is chosen. */
function grid(table, { go, render, what, front, labels = {}, behind } = {}) {
  const labelled = (name) => labels[name] || words(name);
  const shown = front || table.columns.length;
  const count = table.columns.length ? table.columns[0].length : 0;
  const numeric = table.columns.map((column) => column.some((x) => typeof x === "number") && column.every((x) => missing(x) || typeof x === "number"));
  const whole = table.columns.map((column) => column.every((x) => missing(x) || Number.isInteger(x)));
  const longest = table.columns.map((column) => column.reduce((most, x) => Math.max(most, missing(x) ? 0 : String(x).length), 0));
  const kinds = table.columns.map((_, c) => numeric[c] ? "number" : longest[c] > 26 ? "long" : "brief");
  const show = (x, c) => missing(x) ? "" : numeric[c] ? cell(x, whole[c]) : typeof x === "object" ? JSON.stringify(x) : String(x);
  const body = el("tbody");
  let order = Array.from({ length: count }, (_, k) => k);
  let sorted = null, down = false;
  const titles = table.names.slice(0, shown).map((name, c) => el("th", { scope: "col", "aria-sort": "none", class: kinds[c] },
    el("button", { type: "button", onclick: () => sort(c) }, labelled(name))));
  function fill() {
    body.replaceChildren(...order.map((k) => {
      const cells = table.columns.slice(0, shown).map((column, c) => {
        const own = render && render(table.names[c], column[k], k);
        return el("td", { class: kinds[c] }, own || show(column[k], c));
      });
      const row = el("tr", { class: go ? "go" : null, tabindex: go ? "0" : null }, cells);
      if (go) {
        row.addEventListener("click", () => go(k));
        row.addEventListener("keydown", (event) => { if (event.key === "Enter") go(k); });
      }
      return shown < table.columns.length ? opening(row, () => details(k)) : row;
    }));
  }
  /** The columns behind the front ones, one under the other. */
  function details(k) {
    const rest = table.names.map((name, c) => [name, c]).slice(shown).filter(([, c]) => !missing(table.columns[c][k]) && table.columns[c][k] !== "");
    return el("tr", { class: "more" }, el("td", { colspan: shown }, el("dl", {}, rest.flatMap(([name, c]) =>
      [el("dt", {}, labelled(name)), el("dd", { class: ["command", "recompute", "anew"].includes(name) ? "code" : null }, show(table.columns[c][k], c))])), behind ? behind(k) : null));
  }
  /** A row that opens and closes what lies behind it. */
  function opening(row, made) {
    row.classList.add("go");
    row.tabIndex = 0;
    row.setAttribute("aria-expanded", "false");
    let open = null;
    const toggle = () => {
      if (open) { open.remove(); open = null; } else { open = made(); row.after(open); }
      row.setAttribute("aria-expanded", String(Boolean(open)));
    };
    row.addEventListener("click", toggle);
    row.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); } });
    return row;
  }
  function sort(c) {
    down = sorted === c ? !down : false;
    sorted = c;
    const value = (k) => table.columns[c][k];
    order.sort((a, b) => {
      const x = value(a), y = value(b);
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      const by = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
      return down ? -by : by;
    });
    titles.forEach((title, k) => title.setAttribute("aria-sort", k !== c ? "none" : down ? "descending" : "ascending"));
    fill();
  }
  fill();
  return el("div", { class: "grid-wrap", tabindex: "0", role: "region", "aria-label": what || table.title || "table" },
    el("table", { class: "grid" }, el("thead", {}, el("tr", {}, titles)), body));
}

function tableSection(table) {
  const shown = table.columns.length ? table.columns[0].length : 0;
  const rows = () => ({ names: table.names, rows: Array.from({ length: shown }, (_, k) => table.columns.map((column) => column[k])) });
  const filled = table.names.map((_, c) => c).filter((c) => table.columns[c].some((x) => !missing(x) && x !== ""));
  return el("section", { class: "section" },
    el("div", { class: "section-head" }, el("h2", {}, table.title), csvButton(table.title, rows)),
    table.note ? el("p", { class: "hint" }, table.note) : null,
    shown < table.rows ? el("p", { class: "hint" }, "The first " + shown + " of " + table.rows + " rows; the run folder has them all.") : null,
    grid({ ...table, names: filled.map((c) => table.names[c]), columns: filled.map((c) => table.columns[c]) }));
}

/** Where an interval lies, with the null's band behind it. */
function strip({ value, low, high, nullLow, nullHigh, from = 0, to = 1, kind = "", label }) {
  const width = 200, x = (v) => 6 + (width - 12) * (Math.min(Math.max(v, from), to) - from) / (to - from);
  const made = drawn("svg", { class: "strip", viewBox: "0 0 200 16", preserveAspectRatio: "xMinYMid meet", role: "img", "aria-label": label });
  made.append(drawn("line", { class: "axis", x1: x(from), x2: x(to), y1: 8, y2: 8 }));
  if (from < 0) made.append(drawn("line", { class: "axis", x1: x(0), x2: x(0), y1: 3, y2: 13 }));
  if (!missing(nullLow) && !missing(nullHigh)) made.append(drawn("rect", { class: "null", x: x(nullLow), width: Math.max(2, x(nullHigh) - x(nullLow)), y: 2, height: 12 }));
  if (!missing(low) && !missing(high)) made.append(drawn("line", { class: "range " + kind, x1: x(low), x2: x(high), y1: 8, y2: 8 }));
  if (!missing(value)) made.append(drawn("circle", { class: "value", cx: x(value), cy: 8, r: 3.5 }));
  return made;
}
