// The other tabs: lengths, plans, canonical, theory, tables, how it was measured.

function chooser(label, options, value, change) {
  return el("label", {}, label, el("select", { "aria-label": label, onchange: (event) => change(Number(event.target.value)) },
    options.map((text, k) => el("option", { value: k, selected: k === value }, text))));
}

function drawLengths(panel) {
  const tab = run().tabs.lengths, groups = [...new Set(tab.curves.map((curve) => curve.group))], dashes = ["solid", "dash", "dot", "dashdot"];
  const at = [...new Set(tab.curves.flatMap((curve) => curve.x))].sort((x, y) => x - y);
  const made = picture("lengths", "Accuracy by length", () => ({
    traces: tab.curves.map((curve, k) => ({
      type: "scatter", mode: "lines+markers", x: curve.x, y: curve.y, name: plain(curve.name), line: { color: PALETTE[k % PALETTE.length], dash: dashes[groups.indexOf(curve.group) % 4], width: 1.8 }, marker: { size: 6 },
      error_y: curve.low ? { type: "data", symmetric: false, array: curve.high.map((v, c) => v - curve.y[c]), arrayminus: curve.low.map((v, c) => curve.y[c] - v), width: 2, thickness: 1 } : undefined, hovertemplate: "length %{x}: %{y:.3f}",
    })),
    layout: { xaxis: { type: "log", title: { text: tab.x }, ...(at.length <= 14 ? { tickvals: at, ticktext: at.map(String) } : {}) }, yaxis: { range: [-0.02, 1.04], title: { text: "accuracy" } }, showlegend: true, legend: { orientation: "h", y: -0.16, x: 0 }, margin: { l: 46, r: 10, t: 8, b: 40 } },
  }), () => ({ names: ["name", "group", "length", "accuracy", "low", "high"], rows: tab.curves.flatMap((curve) => curve.x.map((x, c) => [curve.name, curve.group, x, curve.y[c], curve.low && curve.low[c], curve.high && curve.high[c]])) }),
  { size: "tall", note: "bars: 95 % intervals; line style: " + groups.join(", ") });
  panel.append(el("div", { class: "section" }, made.root), ...tab.tables.map(tableSection));
}

/** What is lost by every way to decide: a line for each, in the hue and dash it brings or in the next one. */
function losses(what, title, curves, tab) {
  const dashes = ["solid", "dash", "dot"];
  const made = picture(what, title, () => ({
    traces: curves.map((curve, k) => ({
      type: "scatter", mode: "lines+markers", x: curve.x, y: curve.y, name: plain(curve.name), line: { color: PALETTE[(curve.hue ?? k) % PALETTE.length], dash: curve.dash || dashes[Math.floor(k / PALETTE.length) % 3], width: curve.wide || curve.name === "plan" ? 4 : 1.8 }, marker: { size: 6 },
      error_y: curve.low ? { type: "data", symmetric: false, array: curve.high.map((v, c) => v - curve.y[c]), arrayminus: curve.low.map((v, c) => curve.y[c] - v), width: 2, thickness: 1 } : undefined, hovertemplate: "%{x}: %{y:.2f}",
    })),
    layout: { xaxis: { title: { text: tab.x } }, yaxis: { rangemode: "tozero", title: { text: tab.y } }, showlegend: true, legend: { orientation: "h", y: -0.16, x: 0 }, margin: { l: 46, r: 10, t: 8, b: 40 } },
  }), () => ({ names: ["name", tab.x, tab.y, "low", "high"], rows: curves.flatMap((curve) => curve.x.map((x, c) => [curve.name, x, curve.y[c], curve.low && curve.low[c], curve.high && curve.high[c]])) }),
  { size: "tall", note: "bars: 95 % intervals over prompts" });
  return el("div", { class: "section" }, el("h2", {}, title), made.root);
}

/** A plan: what was decided, and what is lost by every way to decide. */
function drawPlan(panel) {
  const tab = run().tabs.plan;
  panel.append(...tab.said.length ? [sentences(tab.said, { class: "said" })] : [],
    ...tab.panels.map((one, p) => losses("plan-" + p, one.title, one.curves, tab)), ...tab.tables.map(tableSection));
}

function drawCanonical(panel) {
  const tab = run().tabs.canonical;
  const angles = tab.experiments.flatMap((one) => one.theta).filter((theta) => theta > 0);
  const nope = Math.min(...angles) / 10, x = (theta) => theta > 0 ? theta : nope;
  const ticks = [...new Set(angles)].filter((theta) => Math.abs(Math.log10(theta) - Math.round(Math.log10(theta))) < 1e-3);
  const axis = { type: "log", title: { text: "angle per position, radians" }, tickvals: [...ticks, nope], ticktext: [...ticks.map(angle), "NoPE"], autorange: "reversed" };
  const final = picture("canonical", "Final accuracy by angle", () => ({
    traces: tab.experiments.map((one, k) => ({ type: "scatter", mode: "lines+markers", x: one.theta.map(x), y: one.mean, name: plain(one.name), line: { color: PALETTE[k % PALETTE.length], width: 1.8 }, marker: { size: 6 }, error_y: { type: "data", array: one.std.map((v) => v || 0), width: 2, thickness: 1 }, text: one.theta.map(angle), hovertemplate: "angle %{text}: %{y:.3f}" })),
    layout: { xaxis: axis, yaxis: { range: [-0.02, 1.04], title: { text: "accuracy" } }, showlegend: true, margin: { l: 46, r: 10, t: 26, b: 40 } },
  }), () => ({ names: ["experiment", "theta", "mean", "std", "seeds"], rows: tab.experiments.flatMap((one) => one.theta.map((theta, c) => [one.name, theta, one.mean[c], one.std[c], one.count[c]])) }), { size: "tall", note: "at the end of training; bars: standard deviation over seeds" });
  const which = () => tab.experiments[Math.min(state.experiment, tab.experiments.length - 1)];
  const steps = picture("canonical-steps", "Accuracy over training by angle", () => ({
    traces: which().step_theta.map((theta, k) => ({ type: "scatter", mode: "lines", x: which().steps, y: which().by_step[k], name: angle(theta), line: { color: theta > 0 ? shade(k / Math.max(1, which().step_theta.length - 1)) : colour("soft"), width: 1.6, dash: theta > 0 ? "solid" : "dot" }, hovertemplate: "step %{x}: %{y:.3f}" })),
    layout: { xaxis: { title: { text: "training step" } }, yaxis: { range: [-0.02, 1.04], title: { text: "accuracy" } }, showlegend: true, legend: { font: { size: 10 } }, margin: { l: 46, r: 10, t: 8, b: 40 } },
  }), () => ({ names: ["theta", "step", "accuracy"], rows: which().step_theta.flatMap((theta, k) => which().steps.map((step, c) => [theta, step, which().by_step[k][c]])) }), { size: "tall", note: "orange: fast angles; blue: slow ones" });
  panel.append(el("div", { class: "bar" }, chooser("over training:", tab.experiments.map((one) => one.name), state.experiment, (k) => { state.experiment = k; steps.draw(); })),
    el("div", { class: "pair section" }, final.root, steps.root), ...tab.tables.map(tableSection));
}

/** From the positional hue to the symbolic one. */
function shade(share) {
  const channels = (hue) => [1, 3, 5].map((k) => parseInt(hue.slice(k, k + 2), 16));
  const from = channels(COLOURS.positional), to = channels(COLOURS.symbolic);
  return "rgb(" + from.map((v, k) => Math.round(v + share * (to[k] - v))).join(",") + ")";
}

/** What a claim rests on: every model's own verdict, and the tables of the stored run. */
function restsOn(tab, id) {
  const models = (tab.models || {})[id], tables = (tab.stored_tables || {})[(tab.evidence || {})[id]] || [];
  const columns = models && [0, 1, 2].map((c) => models.map((row) => row[c]));
  return [
    models ? [el("h3", {}, "Every model"), grid({ names: ["model", "share right", "figure and verdict"], columns })] : null,
    tables.map((one) => [el("h3", {}, one.title), one.columns[0] && one.columns[0].length < one.rows ? el("p", { class: "hint" }, "The first " + one.columns[0].length + " of " + one.rows + " rows of the stored run.") : null, grid(one)]),
  ];
}

/** A tab of statements with verdicts: the theory lab's, or the ledger's. */
const drawVerdicts = (which) => (panel) => {
  const tab = run().tabs[which], all = tab.statements, c = all.names.indexOf("verdict");
  const filtered = () => {
    const keep = all.columns[c].map((_, k) => k).filter((k) => !state.verdict || all.columns[c][k] === state.verdict);
    return { ...all, columns: all.columns.map((column) => keep.map((k) => column[k])) };
  };
  const render = (name, value) => {
    if (name !== "verdict") return null;
    return el("span", { class: "verdict" + (VERDICTS[value] ? " verdict-" + VERDICTS[value] : "") }, value);
  };
  const place = el("div");
  const fill = () => {
    const rows = filtered(), id = all.names.indexOf("id");
    place.replaceChildren(grid(rows, { render, what: "Statements and verdicts", front: tab.front, labels: tab.labels, behind: (k) => id < 0 ? null : restsOn(tab, rows.columns[id][k]) }));
    place.firstChild.classList.add("whole");
  };
  const chips = Object.entries(tab.verdicts).map(([name, count]) => el("button", {
    type: "button", class: "chip", "aria-pressed": String(!state.verdict || state.verdict === name),
    onclick: () => { state.verdict = state.verdict === name ? null : name; chips.forEach((chip, k) => chip.setAttribute("aria-pressed", String(!state.verdict || Object.keys(tab.verdicts)[k] === state.verdict))); fill(); },
  }, count + " " + name));
  const rows = () => ({ names: all.names, rows: all.columns[0].map((_, k) => all.columns.map((column) => column[k])) });
  panel.append(tab.headline ? el("p", { class: "headline" }, tab.headline) : "", el("div", { class: "bar" }, chips, csvButton("statements", rows), el("span", { class: "hint" }, "click a row for its rule, its note, its tables and its command")), place);
  fill();
};

function drawTables(panel) { panel.append(...run().tabs.tables.tables.map(tableSection)); }

const DEFINITIONS = [
  ["positional score", "1 if swapping two tokens (or blocks) leaves the head's attention where it was: it attends by position."],
  ["symbolic score", "1 if the head's attention follows the swapped tokens: it attends by symbol. Both are means over swaps, weighted by how much a swap matters (a softmax with temperature τ)."],
  ["class", "At tolerance γ: positional near (1, 0), symbolic near (0, 1), uniform near (1, 1) where attention is spread evenly, mixed everywhere else. Symbolic means: at its own layer. A head is carried if it is symbolic there and positional with the prompt itself permuted: it follows a state that earlier layers wrote the place into."],
  ["prompt permuted", "The words of the prompt itself change places, and the model runs again: what earlier layers wrote about a place is written anew. At a head's own layer only what the head attends over changes places, as in the papers."],
  ["depth of a swap", "The two blocks change places where they enter that layer, and the model goes on from there. At depth 0 the prompt is permuted; at the head's own layer it is the papers' swap."],
  ["weight covered", "Only the heaviest swaps are run at a depth below the own layer. Where they hold less than half of a head's swap weight, nothing is said about it."],
  ["intervals", "95 % intervals over prompts: Student's t, for scores of heads corrected for skewness. The stability of a class is the share of resamples that keep it."],
  ["null", "The same measurement on a model that learned nothing (random: freshly initialised weights; gaussian: noise instead of the swapped keys). Figures that the null gives too say nothing about training."],
  ["beyond the null", "Further from the null's draws than another draw would be, at 5 % over all figures shown together, and by at least 0.05. It takes 19 draws."],
  ["as in the null", "Certainly less than 0.1 from the null's mean, with the spread between draws and the error over prompts."],
  ["undecided", "Neither was shown. The smallest effect that could have been seen stands beside it."],
  ["effective swaps", "How many swaps decide a score. Near one, the score is about a single swap."],
  ["frequency id", "RoPE turns pairs of dimensions by different angles per position. Id 1 is the fastest; 0 is what does not rotate."],
  ["tau", "The temperature of the weights of swaps: the smaller τ, the fewer swaps decide a score. 1e-4 is that of the papers' code."],
  ["layers and heads", "Counted from 0, written layer:head."],
  ["every other word", "In the glossary of the documentation: docs/glossary.md."],
];
const MEANINGS = Object.fromEntries(DEFINITIONS);
const CLASS_MEANINGS = {
  positional: "stays put: two words change places, and the head looks at the same place as before; positional score near 1, symbolic near 0",
  symbolic: "follows the word at its own layer: symbolic score near 1, positional near 0. Whether it follows the word or a place that earlier layers wrote into it shows with the prompt permuted",
  carried: "symbolic at its own layer, and positional with the prompt permuted: it follows a place that earlier layers wrote into the word",
  uniform: "looks at everything alike: both scores near 1",
  mixed: "neither score is near 1 with the other near 0",
};
const classMeaning = (name) => CLASS_MEANINGS[name].replaceAll("word", heads().noun);
const PAPERS = [
  "Urrutia, Salas, Kozachinskiy, Buc Calderon, Pasten, Rojas. Decoupling Positional and Symbolic Attention (Behavior) in Transformers. ICLR 2026. arXiv:2511.11579",
  "Urrutia, Alegría, Sanchez Macias, Salas, Calderon, Rojas. Positional versus Symbolic Attention Heads: Learning Dynamics, RoPE Geometry, and Length Generalization. arXiv:2605.31558",
];

function drawMeasured(panel) {
  const now = run(), list = (pairs) => el("dl", {}, pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  const flat = (value, front = "") => Object.entries(value || {}).flatMap(([key, inner]) => inner !== null && typeof inner === "object" && !Array.isArray(inner) ? flat(inner, front + key + ".") : [[words(front + key), Array.isArray(inner) ? inner.map(String).join(", ") : String(inner)]]);
  const section = (title, pairs) => pairs.length ? [part(title, list(pairs))] : [];
  const part = (title, ...children) => el("section", { class: "section prose" }, el("h2", {}, title), ...children);
  const cautions = [...now.problems, ...now.warnings];
  panel.append(el("div", { class: "columns" },
    part("What to be careful about", cautions.length ? sentences(cautions) : el("p", {}, "Nothing was noted.")),
    part("The run", list([["name", now.name || ""], ["kind", now.kind || ""], ["finished", now.complete ? "yes" : "no"], ...(now.written ? [["written", now.written]] : []), ...flat(now.subject, "subject.")])),
    ...section("Self-check", flat(now.proof)), ...section("Settings", flat(now.settings)), ...section("Versions", flat(now.versions)),
    ...section("Timings", flat(now.timings).map(([name, value]) => [name.replace(/ s$/, ""), value + " s"])),
    part("In plain words", list(DEFINITIONS)),
    part("Citing", el("p", {}, "Please cite the papers whose measure this is:"), el("ul", {}, PAPERS.map((text) => el("li", {}, text))), el("p", { class: "hint" }, "Made with rotoscope " + content.version + "."))));
}
