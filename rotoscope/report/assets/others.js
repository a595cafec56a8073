// The other tabs: dynamics, lengths, canonical, theory, tables, how it was measured.

function chooser(label, options, value, change) {
  return el("label", {}, label, el("select", { "aria-label": label, onchange: (event) => change(Number(event.target.value)) },
    options.map((text, k) => el("option", { value: k, selected: k === value }, text))));
}

function drawDynamics(panel) {
  const tab = run().tabs.dynamics, series = tab.series[Math.min(state.series, tab.series.length - 1)];
  const steps = series ? series.steps : [...new Set(tab.accuracy.flatMap((curve) => curve.step))].sort((a, b) => a - b);
  if (!steps.length) { panel.append(el("p", { class: "hint" }, "No step has been looked at yet.")); return; }
  let now = nearest(steps, state.step === null ? steps[steps.length - 1] : state.step);
  const log = steps[steps.length - 1] > 4000, least = (steps.find((s) => s > 0) || 2) / 2, place = (s) => log ? Math.max(s, least) : s;

  const plane = !series ? null : picture("dynamics", "Heads in the plane at one step", () => {
    const p = series.positional_score[now], s = series.symbolic_score[now], few = series.layer.length <= 24;
    const traces = [];
    if (few) {
      const x = [], y = [];
      series.layer.forEach((_, k) => { for (let t = Math.max(0, now - 25); t <= now; t++) { x.push(series.positional_score[t][k]); y.push(series.symbolic_score[t][k]); } x.push(null); y.push(null); });
      traces.push({ type: "scatter", mode: "lines", x, y, line: { color: colour("null"), width: 0.8 }, opacity: 0.6, hoverinfo: "skip", showlegend: false });
    }
    for (const name of CLASSES) {
      const members = series.layer.map((_, k) => k).filter((k) => CLASSES[series.head_class[now][k]] === name);
      const labels = together(members, p, s, (k) => headName(series.layer[k], series.head[k]));
      const little = series.little_at_stake ? ", " + members.filter((k) => series.little_at_stake[now][k]).length + " little at stake" : "";
      traces.push({ type: "scatter", mode: few ? "markers+text" : "markers", name: name + " (" + members.length + little + ")", x: members.map((k) => p[k]), y: members.map((k) => s[k]), text: labels, customdata: members.map((k) => headName(series.layer[k], series.head[k])), textposition: "top right", textfont: { size: 10 }, hovertemplate: "%{customdata}<br>positional %{x:.3f}, symbolic %{y:.3f}<extra></extra>", marker: { size: 10, color: COLOURS[name], symbol: SYMBOLS[name], opacity: 0.85, line: { width: name === "mixed" ? 0.8 : 0, color: colour("soft") } } });
    }
    return { traces, layout: { xaxis: { ...PLANE_AXES.xaxis, range: [-0.05, 1.2] }, yaxis: { ...PLANE_AXES.yaxis, range: [-0.05, 1.08] }, shapes: corners(tab), showlegend: true, margin: { l: 46, r: 8, t: 26, b: 40 } } };
  }, () => ({ names: ["step", "layer", "head", "positional_score", "symbolic_score", "head_class"], rows: series.steps.flatMap((step, t) => series.layer.map((layer, k) => [step, layer, series.head[k], series.positional_score[t][k], series.symbolic_score[t][k], CLASSES[series.head_class[t][k]]])) }),
  { size: "tall", note: "class at γ = " + tab.gamma + "; queries: " + (series ? series.queries : "") + ", τ = " + (series ? short(series.tau) : "") });

  const mark = () => [{ type: "line", yref: "paper", x0: place(steps[now]), x1: place(steps[now]), y0: 0, y1: 1, line: { color: colour("ink"), width: 1.5, dash: "dot" } }];
  const curves = !tab.accuracy.length ? null : picture("accuracy", "Accuracy by number of hops over training", () => ({
    traces: tab.accuracy.map((curve, k) => ({ type: "scatter", mode: "lines", x: curve.step.map(place), y: curve.accuracy, name: curve.hops + (curve.hops === 1 ? " hop" : " hops"), line: { color: PALETTE[k % PALETTE.length], width: 1.8 }, text: curve.step, hovertemplate: "step %{text}: %{y:.3f}" })),
    layout: { xaxis: { title: { text: "training step" }, type: log ? "log" : "linear", dtick: log ? 1 : undefined }, yaxis: { range: [-0.02, 1.04], title: { text: "accuracy" } }, shapes: mark(), showlegend: true, margin: { l: 46, r: 10, t: 26, b: 40 } },
  }), () => ({ names: ["step", "hops", "accuracy"], rows: tab.accuracy.flatMap((curve) => curve.step.map((step, k) => [step, curve.hops, curve.accuracy[k]])) }), { size: "tall", note: "on held-out sequences; dotted: the step shown" });

  const output = el("output", { "aria-live": "off" }, "step " + steps[now]);
  const move = (k) => {
    now = k; state.step = steps[now]; output.textContent = "step " + steps[now]; slider.value = String(now);
    if (plane) plane.draw();
    if (curves) Plotly.relayout(curves.plot, { shapes: mark() });
    writeHash();
  };
  const slider = el("input", { type: "range", min: 0, max: steps.length - 1, step: 1, "aria-label": "Training step", oninput: (event) => move(Number(event.target.value)) });
  slider.value = String(now);
  let playing = null;
  const stop = () => { clearInterval(playing); playing = null; play.textContent = "Play"; };
  const play = el("button", { type: "button", onclick: () => {
    if (playing) { stop(); return; }
    play.textContent = "Stop";
    if (now === steps.length - 1) move(0);
    playing = setInterval(() => { if (now >= steps.length - 1 || !slider.isConnected) stop(); else move(now + 1); }, 120);
  } }, "Play");
  panel.append(el("div", { class: "bar" }, play, slider, output,
    tab.series.length > 1 ? chooser("queries and τ", tab.series.map((one) => one.queries + ", " + short(one.tau)), state.series, (k) => { state.series = k; show(); }) : null));
  panel.append(el("div", { class: "pair" }, plane ? plane.root : null, curves ? curves.root : null));
}

/** Names of points; those that lie on top of each other share one label. */
function together(points, p, s, name) {
  const labels = points.map(() => "");
  const taken = points.map(() => false);
  points.forEach((k, a) => {
    if (taken[a]) return;
    const close = points.map((_, b) => b).filter((b) => !taken[b] && Math.abs(p[points[b]] - p[k]) < 0.06 && Math.abs(s[points[b]] - s[k]) < 0.03);
    close.forEach((b) => { taken[b] = true; });
    labels[a] = close.length > 6 ? close.length + " heads" : close.map((b) => name(points[b])).join(" ");
  });
  return labels;
}

function nearest(steps, step) {
  let best = 0;
  steps.forEach((s, k) => { if (Math.abs(s - step) < Math.abs(steps[best] - step)) best = k; });
  return best;
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
    place.replaceChildren(grid(filtered(), { render, what: "Statements and verdicts", front: tab.front }));
    place.firstChild.classList.add("whole");
  };
  const chips = Object.entries(tab.verdicts).map(([name, count]) => el("button", {
    type: "button", class: "chip", "aria-pressed": String(!state.verdict || state.verdict === name),
    onclick: () => { state.verdict = state.verdict === name ? null : name; chips.forEach((chip, k) => chip.setAttribute("aria-pressed", String(!state.verdict || Object.keys(tab.verdicts)[k] === state.verdict))); fill(); },
  }, count + " " + name));
  const rows = () => ({ names: all.names, rows: all.columns[0].map((_, k) => all.columns.map((column) => column[k])) });
  panel.append(el("div", { class: "bar" }, chips, csvButton("statements", rows), el("span", { class: "hint" }, "click a row for its rule, its note and its command")), place);
  fill();
};

function drawTables(panel) { panel.append(...run().tabs.tables.tables.map(tableSection)); }

const DEFINITIONS = [
  ["positional score", "1 if swapping two tokens (or blocks) leaves the head's attention where it was: it attends by position."],
  ["symbolic score", "1 if the head's attention follows the swapped tokens: it attends by symbol. Both are means over swaps, weighted by how much a swap matters (a softmax with temperature τ)."],
  ["class", "At tolerance γ: positional near (1, 0), symbolic near (0, 1), uniform near (1, 1) where attention is spread evenly, mixed everywhere else. Symbolic means: at its own layer. A head is carried if it is symbolic there and positional with the prompt itself permuted: it follows a state that earlier layers wrote the place into."],
  ["swap at depth k", "The two blocks change places where they enter layer k, and the model goes on from there. At k = 0 the words of the prompt change places; at the head's own layer it is the papers' swap."],
  ["weight covered", "Only the heaviest swaps are run at a depth below the own layer. Where they hold less than half of a head's swap weight, nothing is said about it."],
  ["intervals", "95 % intervals over prompts: Student's t, for scores of heads corrected for skewness. The stability of a class is the share of resamples that keep it."],
  ["null", "The same measurement on a model that learned nothing (random: freshly initialised weights; gaussian: noise instead of the swapped keys). Figures that the null gives too say nothing about training."],
  ["beyond the null", "Further from the null's draws than another draw would be: judged with the spread between draws and the error over prompts, at 5 % over all figures shown together, and by at least 0.05 where a figure is a score. One draw gives no verdict."],
  ["effective swaps", "How many swaps decide a score. Near one, the score is about a single swap."],
  ["frequency id", "RoPE turns pairs of dimensions by different angles per position. Id 1 is the fastest; 0 is what does not rotate."],
  ["layers and heads", "Counted from 0, written layer:head."],
  ["every other word", "In the glossary of the documentation: docs/glossary.md."],
];
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
    part("What to be careful about", cautions.length ? el("ul", {}, cautions.map((text) => el("li", {}, text))) : el("p", {}, "Nothing was noted.")),
    part("The run", list([["name", now.name || ""], ["kind", now.kind || ""], ["finished", now.complete ? "yes" : "no"], ...(now.written ? [["written", now.written]] : []), ...flat(now.subject, "subject.")])),
    ...section("Self-check", flat(now.proof)), ...section("Settings", flat(now.settings)), ...section("Versions", flat(now.versions)),
    ...section("Timings", flat(now.timings).map(([name, value]) => [name.replace(/ s$/, ""), value + " s"])),
    part("In plain words", list(DEFINITIONS)),
    part("Citing", el("p", {}, "Please cite the papers whose measure this is:"), el("ul", {}, PAPERS.map((text) => el("li", {}, text))), el("p", { class: "hint" }, "Made with rotoscope " + content.version + "."))));
}
