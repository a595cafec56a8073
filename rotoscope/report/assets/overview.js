// The plane and the map of layers and heads, which share their selection and their filters.

const overview = { plane: null, map: null };

function heads() { return run().tabs.overview; }
function at() { const tab = heads(); return tab.at[Math.min(state.tau, tab.at.length - 1)]; }
function tauNow() { const tab = heads(); return tab.taus[Math.min(state.tau, tab.taus.length - 1)]; }
function className(k) { return CLASSES[at().head_class[k]] || null; }

/** A symbolic head follows the symbol only if it does so with the prompt permuted; the run says which do. */
function classWords(k) { const name = className(k); return name === null ? "no score" : at().at_its_layer[k] ? name + " at its layer" : name; }

function headIndex(name) {
  const k = heads() && name ? places(heads()).get(name) : undefined;
  return k === undefined ? -1 : k;
}

function shown(k) {
  const tab = heads(), now = at(), name = className(k);
  if (name !== null && !state.classes.has(name)) return false;
  if (state.low !== null && tab.layer[k] < state.low) return false;
  if (state.high !== null && tab.layer[k] > state.high) return false;
  if (state.stability === "all" || !now.stable) return true;
  return state.stability === "stable" ? now.stable[k] === true : now.stable[k] === false;
}

function described(k) {
  const tab = heads(), now = at();
  return headName(tab.layer[k], tab.head[k]) + " " + classWords(k) + "<br>positional " + number(now.positional_score[k]) + ", symbolic " + number(now.symbolic_score[k]);
}

function headTable(keep = () => true) {
  const tab = heads(), now = at();
  const names = Object.keys(now).filter((name) => Array.isArray(now[name]) && now[name].length === tab.layer.length && !["statistics", "at_its_layer"].includes(name));
  const rows = tab.layer.map((_, k) => k).filter(keep).map((k) => [tab.layer[k], tab.head[k], tauNow(), ...names.map((name) => name.endsWith("_class") ? CLASSES[now[name][k]] : now[name][k])]);
  return { names: ["layer", "head", "tau", ...names], rows };
}

/** Whether a head has so little attention on what is swapped that its scores hardly matter. */
function leastMass() { return state.mass === null ? heads().least_mass : state.mass; }
function faded(k) { const mass = at().swapped_mass; return Boolean(mass) && !missing(mass[k]) && mass[k] < leastMass(); }

/** Where the null's heads lie, as a shade. */
function nullShade() {
  const { null_density: packed } = at();
  if (!packed) return [];
  const get = unpack(packed), cells = heads().density_cells, middles = Array.from({ length: cells }, (_, k) => (k + 0.5) / cells);
  const z = middles.map((_, y) => middles.map((_, x) => { const share = get(y * cells + x); return share > 0.004 ? Math.sqrt(share) : 0; }));
  return [{ type: "heatmap", x: middles, y: middles, z, zmin: 0, zmax: 1, colorscale: [[0, colour("null") + "00"], [1, colour("null")]], showscale: false, hoverinfo: "skip", zsmooth: "best", name: "null" }];
}

function planeFigure() {
  const tab = heads(), now = at();
  const traces = nullShade(), many = tab.layer.length > 1500;
  for (const name of ["mixed", "uniform", "positional", "symbolic", "carried"]) { // many lie under few
    const shownHeads = tab.layer.map((_, k) => k).filter((k) => className(k) === name && shown(k)), strong = name === "mixed" ? 0.75 : 0.95;
    traces.push({
      type: "scatter", mode: "markers", name, x: shownHeads.map((k) => now.positional_score[k]), y: shownHeads.map((k) => now.symbolic_score[k]), customdata: shownHeads, text: shownHeads.map(described), hovertemplate: "%{text}<extra></extra>",
      marker: { size: many ? 5 : name === "mixed" ? 7 : 10, color: COLOURS[name], symbol: SYMBOLS[name], opacity: shownHeads.map((k) => faded(k) ? 0.18 : many ? 0.6 : strong), line: { width: many ? 0 : 0.6, color: name === "mixed" ? colour("soft") : colour("paper") } },
    });
  }
  return { traces, layout: { ...PLANE_AXES, shapes: planeShapes(), annotations: cornerWords(tab), margin: { l: 46, r: 8, t: 8, b: 40 } } };
}

/** Names of the heads that are pinned, and of the one that is chosen: shapes, which Plotly moves without drawing all anew. */
function pinned() {
  return [...new Set([...state.pins.keys(), ...(state.head ? [state.head] : [])])].map((name) => [name, headIndex(name)]).filter(([, k]) => k >= 0 && !missing(at().positional_score[k])).map(([name, k]) => {
    const x = Math.min(0.94, Math.max(0.06, at().positional_score[k])), y = at().symbolic_score[k] + (at().symbolic_score[k] > 0.85 ? -0.055 : 0.055);
    return { type: "rect", x0: x - 0.05, x1: x + 0.05, y0: y - 0.022, y1: y + 0.022, line: { width: 0 }, fillcolor: colour("veil"), label: { text: (state.pins.has(name) ? "★ " : "") + name, textposition: "middle center", font: { size: 12, color: colour("ink") } } };
  });
}

function planeShapes() {
  const k = headIndex(state.head), known = k >= 0 && !missing(at().positional_score[k]);
  return [...corners(heads()), ...pinned(), ...(known ? [ringed(at().positional_score[k], at().symbolic_score[k])] : [])];
}

const NULL_WORDS = { random: "random models", gaussian: "Gaussian keys" };

const MEASURES = {
  class: "class", positional_score: "positional score", symbolic_score: "symbolic score", input_positional_score: "positional score, prompt permuted", input_symbolic_score: "symbolic score, prompt permuted", covered_share: "weight of the swaps run", class_share: "share of prompts with this class", class_stability: "stability of the class",
  relative_entropy: "entropy (of uniform)", swapped_mass: "attention on what is swapped", weighted_frequency_id: "weighted frequency id",
};

function mapFigure() {
  const tab = heads(), now = at(), measure = now[state.measure] || state.measure === "class" ? state.measure : "class";
  const layers = Math.max(...tab.layer) + 1, wide = Math.max(...tab.head) + 1;
  const blank = () => Array.from({ length: layers }, () => new Array(wide).fill(null));
  const z = blank(), text = blank();
  tab.layer.forEach((layer, k) => {
    text[layer][tab.head[k]] = described(k);
    if (!shown(k)) return;
    const code = now.head_class[k];
    z[layer][tab.head[k]] = measure === "class" ? (code < 0 ? null : code) : now[measure][k];
  });
  const few = layers * wide < 1000, veil = blank();
  tab.layer.forEach((layer, k) => { if (shown(k) && faded(k)) veil[layer][tab.head[k]] = 1; });
  const trace = { type: "heatmap", z, text, hovertemplate: "%{text}<extra></extra>", hoverongaps: true, xgap: few ? 2 : 0.5, ygap: few ? 1 : 0.5 };
  if (measure === "class") {
    trace.colorscale = CLASSES.flatMap((name, k) => [k, k + 1].map((end) => [end / CLASSES.length, COLOURS[name]]));
    Object.assign(trace, { zmin: -0.5, zmax: CLASSES.length - 0.5, showscale: false });
  } else {
    const share = measure !== "weighted_frequency_id" && measure in MEASURES;
    Object.assign(trace, { colorscale: [[0, colour("sheet")], [1, HUES[measure] || HUES.relative_entropy]], zmin: share ? 0 : undefined, zmax: share ? 1 : undefined, colorbar: { thickness: 8, len: 0.6, outlinewidth: 0 } });
  }
  const veiled = { type: "heatmap", z: veil, hoverinfo: "skip", showscale: false, opacity: 0.72, colorscale: [[0, colour("paper")], [1, colour("paper")]], xgap: trace.xgap, ygap: trace.ygap };
  return {
    traces: [trace, veiled],
    layout: {
      shapes: mapShapes(), margin: { l: 40, r: 8, t: 8, b: 40 },
      xaxis: { title: { text: "head" }, range: [-0.5, wide - 0.5], dtick: wide <= 20 ? 1 : undefined, showgrid: false },
      yaxis: { title: { text: "layer" }, range: [-0.5, layers - 0.5], showgrid: false, dtick: layers <= 14 ? 1 : undefined },
    },
  };
}

function mapShapes() {
  const k = headIndex(state.head), tab = heads();
  if (k < 0) return [];
  const x = tab.head[k], y = tab.layer[k];
  return [{ type: "rect", x0: x - 0.5, x1: x + 0.5, y0: y - 0.5, y1: y + 0.5, line: { color: colour("ink"), width: 2.5 } }];
}

function choices(options, value, change, label) {
  return el("select", { "aria-label": label, onchange: (event) => change(event.target.value) },
    options.map(([key, text]) => el("option", { value: key, selected: String(key) === String(value) }, text)));
}

/** What the map shows, to choose under it. */
function mapChoice() {
  const tab = heads(), now = at();
  const measures = [...Object.entries(MEASURES), ...(tab.measures || []).map((name) => [name, words(name)])].filter(([name]) => name === "class" || now[name]);
  return el("label", {}, "map of the ", choices(measures, state.measure, (v) => { state.measure = v; overview.map.draw(); }, "What the map shows"));
}

function filterBar() {
  const tab = heads(), now = at();
  const last = Math.max(...tab.layer);
  const members = (name) => now.head_class.map((code, k) => [code, k]).filter(([code]) => CLASSES[code] === name).map(([, k]) => k);
  const counts = (name) => members(name).length;
  const massNow = () => Number((100 * leastMass()).toPrecision(3)) + " %";
  const counted = (name) => counts(name) + " " + name + (now.swapped_mass ? " (" + members(name).filter(faded).length + ")" : "");
  const chips = CLASSES.filter((name) => tab.permuted || name !== "carried").map((name) => el("button", {
    type: "button", class: "chip", "aria-pressed": String(state.classes.has(name)), "data-class": name,
    onclick: (event) => {
      if (state.classes.has(name)) state.classes.delete(name); else state.classes.add(name);
      event.currentTarget.setAttribute("aria-pressed", String(state.classes.has(name)));
      refilter();
    },
    title: classMeaning(name),
  }, el("span", { class: "dot " + name }), el("span", { class: "counted" }, counted(name))));
  const fade = (share) => {
    state.mass = share;
    document.getElementById("mass-now").textContent = massNow();
    chips.forEach((chip) => { chip.querySelector(".counted").textContent = counted(chip.dataset.class); });
    refilter();
  };
  const end = (which, label, value) => el("input", {
    type: "number", min: 0, max: last, value, "aria-label": label,
    onchange: (event) => { const v = event.target.value; state[which] = v === "" ? null : Number(v); refilter(); },
  });
  return el("div", { class: "bar", role: "group", "aria-label": "Filters" },
    el("fieldset", { "aria-label": "Classes shown" }, chips),
    now.swapped_mass ? el("label", { id: "fade", title: EXPLAINED.mass }, "faded, and in brackets: under", el("input", { type: "range", id: "mass", min: 0, max: 50, step: 1, value: Math.round(100 * leastMass()), "aria-label": "Fade heads with less than this percentage of their attention on what is swapped",
      oninput: (event) => fade(Number(event.target.value) / 100) }), el("span", {}, el("output", { id: "mass-now" }, massNow()), " of attention at stake")) : null,
    el("label", {}, "layers", end("low", "First layer shown", state.low ?? 0), "to", end("high", "Last layer shown", state.high ?? last)),
    now.stable && now.stable.some((x) => x !== null)
      ? choices([["all", "stable or not"], ["stable", "stable classes"], ["unstable", "unstable classes"]], state.stability, (v) => { state.stability = v; refilter(); }, "Stability") : null,
    tab.taus.length > 1
      ? el("label", { title: MEANINGS.tau }, "τ", choices(tab.taus.map((tau, k) => [k, short(tau)]), state.tau, (v) => { state.tau = Number(v); show(); }, "tau")) : null,
    el("span", { id: "count", class: "hint", role: "status" }));
}

function countShown() {
  const tab = heads(), place = document.getElementById("count");
  const left = tab.layer.filter((_, k) => shown(k)).length;
  if (place) place.textContent = left === tab.layer.length ? "" : left + " of " + tab.layer.length + " heads";
}

function refilter() { countShown(); overview.plane.draw(); overview.map.draw(); }

/** What came out, in a few sentences. */
function headline() {
  const [first, rest] = at().headline || ["", ""];
  return el("p", { class: "headline", id: "headline" }, el("b", {}, first), " ", el("span", {}, rest));
}

function manyPrompts() {
  const many = at().prompts ? Math.max(...at().prompts.filter((x) => !missing(x))) : 0;
  return many ? many + (many === 1 ? " prompt" : " prompts") : "all prompts";
}

function drawOverview(panel) {
  const tab = heads();
  const keep = (k) => shown(k);
  overview.plane = picture("plane", "The positional-symbolic plane: one point per head. The same numbers are in the CSV and in the head card.", planeFigure, () => headTable(keep), {
    size: "square",
    note: "corners: pure at γ = " + tab.gamma + (tab.null ? "; grey: heads of " + NULL_WORDS[tab.null] : ""),
    click: (point) => { if (point.customdata !== undefined) choose(headName(tab.layer[point.customdata], tab.head[point.customdata])); },
  });
  overview.map = picture("map", "Map of layers and heads", mapFigure, () => headTable(keep), {
    note: mapChoice(), click: (point) => choose(headName(point.y, point.x)),
  });
  panel.append(headline(), filterBar(), el("div", { class: "pair over" }, overview.plane.root, overview.map.root), el("section", { class: "prompt", id: "prompt", "aria-label": "The prompt" }));
  countShown();
  drawPrompt();
}

/** Only the marks move when another head is chosen. */
function remark() {
  if (state.tab === "depths") remarkDepths();
  if (state.tab === "compare") remarkCompare();
  if (state.tab === "training") training.remark();
  if (state.tab === "overview" && overview.plane) {
    Plotly.relayout(overview.plane.plot, { shapes: planeShapes() });
    Plotly.relayout(overview.map.plot, { shapes: mapShapes() });
    drawPrompt();
  }
}

/** The whole model in figures, beside what the null gives. */
function summaryCard() {
  const tab = heads(), now = at();
  const rows = (now.statistics || []).map((row) => {
    const from = row.statistic === "correlation" || /decline|rise/.test(row.statistic) ? -1 : 0;
    const label = row.meaning + ": " + number(row.value, 2);
    return el("tr", {},
      el("th", { scope: "row" }, term(row.statistic, row.meaning), strip({ value: row.value, low: row.low, high: row.high, nullLow: row.null_low, nullHigh: row.null_high, from, label })),
      el("td", {}, fixed(row.value) + (missing(row.low) ? "" : " [" + fixed(row.low) + ", " + fixed(row.high) + "]"), el("br"),
        el("span", { class: row.verdict === "beyond the null" ? "beyond" : "hint", title: row.reason || MEANINGS[row.verdict] || null }, row.verdict || ""),
        row.null_name ? el("span", { class: "hint", "data-beside": row.null_name }, " (grey: " + row.null_name + ")") : null,
        missing(row.little_at_stake) ? null : [el("br"), el("span", { class: "hint" }, "of which little at stake " + fixed(row.little_at_stake))]));
  });
  const unsaid = [...new Set((now.statistics || []).map((row) => row.reason).filter((reason) => reason && reason !== "undefined"))];
  return [
    el("h2", {}, "What the heads do"),
    el("p", { id: "asked" }, "Two " + tab.noun + "s of a prompt change places: does the head stay, or follow the " + tab.noun + "? Each point is a head on " + manyPrompts() + "."),
    ...whichHeads(),
    el("p", { class: "hint" }, "Choose a head by click, or type its name (", el("kbd", {}, "/"), "); ", el("kbd", {}, "←"), el("kbd", {}, "→"), el("kbd", {}, "↑"), el("kbd", {}, "↓"), " walk over heads, ", el("kbd", {}, "Esc"), " comes back here."),
    ...pinList(), ...nextSteps(),
    el("h2", { class: "apart" }, "The model in figures"),
    rows.length ? el("table", { class: "measures", "aria-label": "Summary figures" }, el("tbody", {}, rows)) : el("p", { class: "hint" }, "The summary figures need scores per prompt, which this run does not have."),
    rows.length ? el("p", { class: "hint" }, "Dot and line: value and 95 % interval over prompts, at τ = " + short(tauNow()) + (tab.null ? "; grey: where 95 % of further draws of the null named beside it would lie (" + now.statistics[0].null_draws + " drawn)." : ".")) : null,
    unsaid.length ? el("p", { class: "hint", id: "unsaid" }, unsaid.join("; ") + ".") : null,
  ];
}

/** The heads of every class, those first that put most attention on what is swapped. */
function whichHeads() {
  const tab = heads(), now = at(), weight = (k) => now.swapped_mass && !missing(now.swapped_mass[k]) ? now.swapped_mass[k] : 0;
  const kinds = new Map(); // symbolic heads that follow in the prompt, too, stand by themselves
  tab.layer.map((_, k) => k).filter((k) => className(k) !== null && className(k) !== "mixed").sort((a, b) => now.head_class[a] - now.head_class[b] || now.at_its_layer[a] - now.at_its_layer[b] || weight(b) - weight(a))
    .forEach((k) => { const words = inWords(k); if (!kinds.has(words)) kinds.set(words, []); kinds.get(words).push(k); });
  const button = (k) => el("button", { type: "button", class: "head", onclick: () => choose(headName(tab.layer[k], tab.head[k])) }, headName(tab.layer[k], tab.head[k]));
  const few = 8;
  return [el("dl", { class: "which", id: "which" }, [...kinds].flatMap(([words, members]) => [
    el("dt", {}, el("span", { class: "dot " + className(members[0]) }), el("span", {}, el("b", { class: "class-" + className(members[0]) }, words), " ", term(members.length + " " + className(members[0]), classMeaning(className(members[0]))))),
    el("dd", { "data-class": className(members[0]) }, members.slice(0, few).map(button), members.length > few ? el("details", {}, el("summary", {}, "and " + (members.length - few) + " more"), members.slice(few).map(button)) : null),
  ])), kinds.size ? null : el("p", { class: "hint" }, "No head is of a pure class.")];
}

/** What to run next, as the run itself suggests it. */
function nextSteps() {
  const steps = run().next || [];
  return steps.length ? [el("h3", {}, "Go on with"), el("dl", { class: "next", id: "next" }, steps.flatMap((step) => [el("dt", {}, step.why), el("dd", {}, copyable(step.command))]))] : [];
}
