// One head: its numbers, its frequencies, and what it does to a swap.

const EXPLAINED = {
  share: "share of the prompts on which the head, taken alone, has this class",
  stability: "share of resamples of the prompts in which the head keeps its class, in the mean and on at least half of them; below 95 % it is unstable",
  entropy: "how spread out the attention is, in nats; in brackets as a share of uniform attention",
  mass: "how much of the attention falls on what was swapped: the scores say nothing about the rest",
  covered: "how much of the head's swap weight the swaps that were run in the prompt hold; under half there is no verdict",
  carry: "the largest depth below its own layer at which the head stays in place more than it follows",
  swaps: "how many swaps decide the score at this tau",
  renormalised: "attention renormalised over what is swapped before tau acts on it",
  centred: "uniform attention subtracted first",
  previous_token: "attention on the token before, on random tokens written twice",
  duplicate_token: "attention on the earlier occurrence of the same token",
  induction: "attention on the token after the earlier occurrence of the same token",
  copying: "share of the repeated tokens that the head looks at most just before the model says them",
  delimiter: "attention on punctuation, line breaks and special tokens, on plain prose",
  sink: "attention on the first position",
  "equal symbols": "swaps between equal symbols alone",
};

function headCard(k) {
  const tab = heads(), now = at(), name = headName(tab.layer[k], tab.head[k]), kind = className(k);
  const value = (column) => now[column] ? now[column][k] : null;
  const band = (score) => (now.null_band && now.null_band[score]) || [null, null, null];
  const score = (which, label, column = which + "_score") => {
    const ends = band(column), meaning = column.startsWith("input") ? MEANINGS["prompt permuted"] : MEANINGS[which + " score"];
    const words = label + " " + number(value(column)) + interval(column);
    return el("tr", {}, el("th", { scope: "row" }, term(label, meaning), strip({ value: value(column), low: value(column + "_low"), high: value(column + "_high"), nullLow: ends[0], nullHigh: ends[2], kind: which, label: words })),
      el("td", {}, el("b", { "data-value": column }, fixed(value(column), 4)), interval(column), missing(ends[0]) ? null : [el("br"), el("span", { class: "hint" }, NULL_WORDS[tab.null] + " " + fixed(ends[0]) + " to " + fixed(ends[2]))], now.above_null && now.above_null[column] ? [el("br"), el("span", { class: "hint", "data-null": column }, againstNull(now.above_null[column][k]))] : null));
  };
  const line = (label, text, title, key) => missing(text) ? null : el("tr", {}, el("th", { scope: "row" }, term(label, title)), el("td", { class: "words", "data-value": key }, text));
  const interval = (column) => missing(value(column + "_low")) ? "" : " [" + fixed(value(column + "_low"), 3) + ", " + fixed(value(column + "_high"), 3) + "]";
  const variant = (front, label) => missing(value(front + "positional_score")) ? null : line(label + ": positional; symbolic",
    ["positional_score", "symbolic_score"].map((score) => fixed(value(front + score), 3) + interval(front + score)).join("; "), EXPLAINED[label], front + "scores");
  const stability = value("class_stability");
  const permuted = missing(value("covered_share")) ? [] : [
    ...(missing(value("input_positional_score")) ? [] : [score("positional", "prompt permuted: positional", "input_positional_score"), score("symbolic", "prompt permuted: symbolic", "input_symbolic_score")]),
    line("weight of the swaps run", Math.round(100 * value("covered_share")) + " %" + (value("input_class") < 0 ? ", no verdict" : ""), EXPLAINED.covered, "covered_share"),
    value("input_class") < 0 ? null : line("class with the prompt permuted", el("b", { class: "class-" + CLASSES[value("input_class")] }, CLASSES[value("input_class")]), null, "input_class"),
    missing(value("carry_depth")) ? null : line("carry depth", value("carry_depth"), EXPLAINED.carry, "carry_depth"),
  ];
  const rows = [
    score("positional", "positional score"), score("symbolic", "symbolic score"),
    line("class at γ = " + tab.gamma, el("b", { class: kind ? "class-" + kind : null, "data-value": "head_class" }, kind ? classWords(k) : value("missing_reason") || "no score"), kind ? classMeaning(kind) : null),
    ...permuted,
    missing(value("swapped_mass")) ? null : line("attention on what is swapped", Math.round(100 * value("swapped_mass")) + " %" + (value("little_at_stake") ? ", little at stake" : ""), EXPLAINED.mass, "swapped_mass"),
    ...(tab.measures || []).map((name) => missing(value(name)) ? null : line(name.replaceAll("_", " "), fixed(value(name), 3) + (missing(band(name)[0]) ? "" : ", " + NULL_WORDS[tab.null] + " " + fixed(band(name)[0]) + " to " + fixed(band(name)[2])), "a measure of this run", name)),
    ...Object.entries(tab.known || {}).map(([kind, scores]) => missing(scores[k]) ? null : line(kind.replace("_", " "), fixed(scores[k], 2), EXPLAINED[kind], kind)),
  ];
  const further = [
    missing(value("class_share")) ? null : line("has it on", Math.round(100 * value("class_share")) + " % of its prompts", EXPLAINED.share, "class_share"),
    missing(stability) ? null : line("stability", Math.round(100 * stability) + " %" + (value("stable") === false ? ", unstable" : ""), EXPLAINED.stability, "class_stability"),
    missing(value("entropy")) ? null : line("entropy", number(value("entropy"), 2) + (missing(value("relative_entropy")) ? "" : " (" + Math.round(100 * value("relative_entropy")) + " % of uniform)"), EXPLAINED.entropy, "entropy"),
    missing(value("effective_swaps")) ? null : line("effective swaps", number(value("effective_swaps"), 2), EXPLAINED.swaps, "effective_swaps"),
    missing(value("weighted_frequency_id")) ? null : line("frequency id, weighted; dominant", number(value("weighted_frequency_id"), 1) + "; " + number(value("dominant_frequency_id"), 0), "1 is the fastest plane"),
    variant("renormalised_", "renormalised"), variant("centred_", "centred"), variant("equal_symbol_", "equal symbols"),
    missing(value("prompts")) ? null : line("prompts", value("prompts") + (value("prompts") === 1 ? ": no interval" : "")),
  ];
  const step = (text, label, d) => el("button", { type: "button", "aria-label": label, onclick: () => walk(0, d) }, text);
  return [
    el("div", { class: "card-head" }, el("h2", { id: "card-title" }, "Head " + name), step("‹", "Previous head", -1), step("›", "Next head", 1),
      el("button", { type: "button", "aria-label": "Close the head card", onclick: () => choose(null) }, "×")),
    el("p", { class: "hint" }, "layer " + tab.layer[k] + ", head " + tab.head[k] + ", counted from 0; τ = " + short(tauNow())),
    el("p", { class: "in-words", id: "in-words" }, kind ? [el("b", { class: "class-" + kind }, inWords(k)), value("little_at_stake") ? ", but little is at stake" : "", value("stable") === false ? "; unstable over prompts" : ""] : "no score"),
    el("table", { class: "measures", "aria-label": "Measures of head " + name }, el("tbody", {}, rows)),
    el("details", { class: "further", open: state.further, ontoggle: (event) => { state.further = event.target.open; } }, el("summary", {}, "More measures"), el("table", { class: "measures", "aria-label": "More measures of head " + name }, el("tbody", {}, further))),
    pinField(name),
    ...examplePictures(k, name), ...depthPicture(name), ...frequencyPictures(k),
    headSteps(name, kind).length ? el("h3", {}, "Go on with this head") : null, el("dl", { class: "next" }, headSteps(name, kind).flatMap(([why, command]) => [el("dt", {}, why), el("dd", {}, copyable(command))])),
  ];
}

/** What the head does when two blocks change places. */
function inWords(k) {
  const noun = heads().noun;
  return { positional: "stays put", symbolic: (at().at_its_layer[k] ? "follows the " + noun + " at its layer" : "follows the " + noun) + (mostlyStays(k) ? ", but mostly stays with the prompt permuted" : ""), carried: "follows a place that was written into the " + noun, uniform: "looks at everything", mixed: "does neither clearly" }[className(k)];
}

/** Whether a head that follows at its layer stays far more than it follows once the prompt itself is permuted. */
function mostlyStays(k) {
  const now = at();
  return Boolean(now.input_class) && now.input_class[k] >= 0 && now.input_positional_score[k] - now.input_symbolic_score[k] > 0.5;
}

/** Commands about one head, with the model and the task of this run. */
function headSteps(name, kind) {
  const filled = (text) => text.replaceAll("{head}", name).replaceAll("{class}", kind);
  return (run().head_next || []).filter((step) => kind || !step.command.includes("{class}")).map((step) => [filled(step.why), filled(step.command)]);
}

/** How this head lies among the heads of the null. */
function againstNull(below) {
  return missing(below) ? null : "above " + (below === 1 ? "all" : below === 0 ? "none" : below < 0.01 ? "under 1 %" : Math.floor(100 * below) + " %") + " of their heads";
}

/** The depth curve of a head, where depths were measured. */
function depthPicture(name) {
  if (!run().tabs.depths || state.tab === "depths") return [];
  return [el("h3", {}, "By the depth of the swap"), picture("depth-" + name, "Both scores of head " + name + " by the depth of the swap", depthCurves, () => {
    const { x, covered, whole } = depthPoints(name), columns = ["positional_score", "symbolic_score"];
    return { names: ["head", "depth", ...columns, "covered_share"], rows: x.map((depth, c) => [name, depth, ...columns.map((column) => whole(column)[c]), covered[c]]) };
  }, { size: "low", note: "0: the prompt permuted; dotted: its own layer" }).root];
}

/** The planes of one head, or null. */
function planesOf(k) {
  const tab = heads(), store = tab.frequencies;
  if (!store) return null;
  const row = places(store).get(headName(tab.layer[k], tab.head[k]));
  if (row === undefined) return null;
  const now = store.at[Math.min(state.tau, store.at.length - 1)], count = store.ids.length;
  const read = (packed) => { const get = unpack(packed); return store.ids.map((_, c) => get(row * count + c)); };
  const angles = store.angles.lists[store.angles.of_layer[String(tab.layer[k])]];
  const positional = read(now.positional_score), symbolic = read(now.symbolic_score), norm = read(store.logit_norm);
  const ends = Object.fromEntries(["positional", "symbolic"].flatMap((kind) => ["_low", "_high"].map((end) => [kind + end, now[kind + "_score" + end] ? read(now[kind + "_score" + end]) : null])));
  const keep = store.ids.map((_, c) => c).filter((c) => !(missing(positional[c]) && missing(norm[c])));
  const pick = (values) => keep.map((c) => values[c]);
  return { ids: pick(store.ids), angles: pick(angles), positional: pick(positional), symbolic: pick(symbolic), norm: pick(norm), null: now.null,
    ends: Object.fromEntries(Object.entries(ends).filter(([, values]) => values).map(([name, values]) => [name, pick(values)])) };
}

function frequencyPictures(k) {
  const planes = planesOf(k);
  if (!planes) return [];
  const known = Object.keys(planes.ends);
  const rows = () => ({ names: ["frequency_id", "angle", "positional_score", "symbolic_score", "logit_norm", ...known], rows: planes.ids.map((id, c) => [id, planes.angles[c], planes.positional[c], planes.symbolic[c], planes.norm[c], ...known.map((end) => planes.ends[end][c])]) });
  const bars = (y, name) => planes.ends[name + "_low"] ? { error_y: { type: "data", symmetric: false, thickness: 0.8, width: 0, array: y.map((v, c) => Math.max(0, planes.ends[name + "_high"][c] - v)), arrayminus: y.map((v, c) => Math.max(0, v - planes.ends[name + "_low"][c])) } } : {};
  const line = (y, name) => ({ type: "scatter", mode: "lines+markers", x: planes.ids, y, name, line: { color: COLOURS[name], width: 1.5 }, marker: { size: 4, symbol: SYMBOLS[name] }, ...bars(y, name), customdata: planes.angles, hovertemplate: "id %{x}, angle %{customdata:.3g}<br>" + name + " %{y:.3f}<extra></extra>" });
  const band = (score, name) => planes.null ? [{
    type: "scatter", x: [...planes.null.ids, ...planes.null.ids.slice().reverse()], y: [...planes.null[score].high, ...planes.null[score].low.slice().reverse()],
    fill: "toself", fillcolor: COLOURS[name], opacity: 0.13, mode: "none", line: { width: 0 }, hoverinfo: "skip", showlegend: false,
  }] : [];
  const axis = { title: { text: "frequency id (1 is the fastest; 0 does not rotate)" } };
  const scores = picture("frequencies-" + state.head, "Positional and symbolic score of every frequency of head " + state.head, () => ({
    traces: [...band("positional_score", "positional"), ...band("symbolic_score", "symbolic"), line(planes.positional, "positional"), line(planes.symbolic, "symbolic")],
    layout: { xaxis: axis, yaxis: { range: [-0.04, 1.04], title: { text: "score" } }, showlegend: true, margin: { l: 40, r: 6, t: 22, b: 34 } },
  }), rows, { size: "low", note: [known.length ? "bars: 95 % intervals" : "", planes.null ? "bands: 95 % of the null's planes" : ""].filter(Boolean).join("; ") });
  const norms = picture("logit-norms-" + state.head, "Norm of the logits of every frequency of head " + state.head, () => ({
    traces: [{ type: "bar", x: planes.ids, y: planes.norm, marker: { color: colour("focus") }, customdata: planes.angles, hovertemplate: "id %{x}, angle %{customdata:.3g}<br>norm %{y:.3g}<extra></extra>" }],
    layout: { xaxis: axis, yaxis: { title: { text: "logit norm" }, rangemode: "tozero" }, margin: { l: 40, r: 6, t: 6, b: 34 } },
  }), rows, { size: "low" });
  return [el("h3", {}, "Single frequencies"), scores.root, norms.root];
}

/** Attention by position before and after the swap that is chosen, and the plane that decides; or why there are none. */
function examplePictures(k, name) {
  const tab = shownPrompt(), whole = heads().shown;
  if (!whole) return [];
  if (!tab || !tab.attention) return [el("h3", {}, "Attention"), el("p", { class: "hint", id: "no-attention" }, "Not shown: " + whole.why + ".")];
  const swap = swapNow(k), before = attentionOf(k), after = attentionAfter(k, swap), order = exchanged(tab, swap.first, swap.second), noun = heads().noun;
  const shade = ([a, b]) => ({ type: "rect", yref: "paper", x0: a - 0.5, x1: b - 0.5, y0: 0, y1: 1, line: { width: 0 }, fillcolor: BLOCK, opacity: 0.25, layer: "below" });
  const text = (p) => plain(JSON.stringify(tab.token[p]));
  const line = (y, title, from, own) => ({ type: "scatter", mode: "lines", x: y.map((_, p) => p), y, name: title, line: own, text: y.map((_, p) => text(from ? from[p] : p)), hovertemplate: "position %{x}: %{text}<br>" + title + " %{y:.3f}<extra></extra>" });
  const inPrompt = attentionPermuted(k);
  const made = [el("h3", {}, noun[0].toUpperCase() + noun.slice(1) + "s " + swap.first + " and " + swap.second + " change places"), picture("swap-" + name, "Attention of head " + name + " before and after a swap", () => ({
    traces: [line(before, "before", null, { color: colour("ink"), width: 1.4 }), line(after, "at layer " + heads().layer[k], order, { color: colour("swapped"), width: 1.4, dash: "dot" }), ...(inPrompt ? [line(inPrompt, "in the prompt", order, { color: PERMUTED, width: 1.4, dash: "dash" })] : [])],
    layout: { xaxis: { title: { text: "position" } }, yaxis: { title: { text: "attention" }, rangemode: "tozero" }, shapes: [shade(spans(tab)[swap.first]), shade(spans(tab)[swap.second])], showlegend: true, margin: { l: 40, r: 6, t: 22, b: 34 } },
  }), () => ({ names: ["position", "token", "block", "attention", "token_after", "attention_after", ...(inPrompt ? ["attention_prompt_permuted"] : [])], rows: before.map((x, p) => [p, tab.token[p], tab.block[p], x, tab.token[order[p]], after[p], ...(inPrompt ? [inPrompt[p]] : [])]) }),
  { size: "low", note: "first prompt; shaded: the two " + noun + "s" }).root];
  const vectors = vectorsOf(k);
  if (vectors) made.push(el("h3", {}, "Query and keys in the plane that decides"), vectorPicture(name, vectors).root);
  return made;
}

/** The query and the keys of a head in the plane whose logits vary most, un-rotated and as they meet. */
function vectorsOf(k) {
  const tab = shownPrompt(), store = tab.vectors;
  if (!store || !store.frequency_id[k]) return null;
  const positions = tab.block.map((block, p) => p).filter((p) => tab.block[p] >= 0), codes = new Int8Array(bytesOf(store.keys).buffer), size = store.longest[k] / 127;
  const found = { frequency_id: store.frequency_id[k], angle: store.angle[k], kind: ["query"], position: [tab.query], re: [Math.cos(store.query[k])], im: [Math.sin(store.query[k])], re_met: [Math.cos(store.query[k])], im_met: [Math.sin(store.query[k])] };
  positions.forEach((p, c) => {
    const at = 2 * (k * positions.length + c), re = size * codes[at], im = size * codes[at + 1], turn = (p - tab.query) * found.angle, cos = Math.cos(turn), sin = Math.sin(turn);
    found.kind.push("key"); found.position.push(p); found.re.push(re); found.im.push(im); found.re_met.push(re * cos - im * sin); found.im_met.push(im * cos + re * sin);
  });
  return found;
}

function vectorPicture(name, vectors) {
  const keys = vectors.kind.map((kind, c) => c).filter((c) => vectors.kind[c] === "key");
  const query = vectors.kind.indexOf("query");
  const figure = () => {
    const traces = [], layout = { shapes: [], annotations: [], margin: { l: 30, r: 6, t: 20, b: 26 } };
    [["", "un-rotated"], ["_met", "as they meet"]].forEach(([suffix, title], side) => {
      const x = keys.map((c) => vectors["re" + suffix][c]), y = keys.map((c) => vectors["im" + suffix][c]);
      const reach = 1.15 * Math.max(1e-9, ...x.map((v, c) => Math.hypot(v, y[c])));
      const axes = side ? { xaxis: "x2", yaxis: "y2" } : {};
      traces.push({ type: "scatter", mode: "markers", x, y, ...axes, marker: { size: 5, color: keys.map((c) => vectors.position[c]), colorscale: "Cividis" }, text: keys.map((c) => "key at " + vectors.position[c] + ": " + plain(JSON.stringify(shownPrompt().token[vectors.position[c]]))), hovertemplate: "%{text}<extra></extra>" });
      const n = side ? "2" : "";
      layout["xaxis" + n] = { range: [-reach, reach], domain: side ? [0.54, 1] : [0, 0.46], anchor: "y" + n, zeroline: true, nticks: 4 };
      layout["yaxis" + n] = { range: [-reach, reach], anchor: "x" + n, zeroline: true, nticks: 4 };
      layout.annotations.push({ xref: "paper", yref: "paper", x: side ? 0.54 : 0, y: 1.0, yanchor: "bottom", xanchor: "left", text: title, showarrow: false });
      if (query >= 0) {
        const size = Math.max(1e-9, Math.hypot(vectors.re[query], vectors.im[query]));
        layout.annotations.push({ x: vectors.re[query] / size * reach * 0.9, y: vectors.im[query] / size * reach * 0.9, ax: 0, ay: 0, xref: "x" + n, yref: "y" + n, axref: "x" + n, ayref: "y" + n, showarrow: true, arrowhead: 2, arrowwidth: 2, arrowcolor: QUERY, text: "" });
      }
    });
    return { traces, layout };
  };
  return picture("vectors-" + name, "Query and keys of head " + name, figure, () => ({ names: ["kind", "position", "re", "im", "re_met", "im_met"], rows: vectors.kind.map((kind, c) => [kind, vectors.position[c], vectors.re[c], vectors.im[c], vectors.re_met[c], vectors.im_met[c]]) }),
    { size: "low", note: "red: direction of the query; id " + vectors.frequency_id + ", " + number(vectors.angle, 3) + " rad a position; first prompt" });
}
