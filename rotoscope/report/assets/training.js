// The training tab: heads in the plane at one step, and beside it, over all steps, accuracy, classes and when heads became pure.

/** Draws a run that has grown where it stands, so that slider, zoom and playing stay; false where that cannot be done. */
const training = { renew: () => false, remark: () => {} };
const AT_ITS_LAYER = CLASSES.filter((name) => name !== "carried");
const FEW_HEADS = 24;

function series() { const tab = run().tabs.training; return tab && tab.series[Math.min(state.series, tab.series.length - 1)]; }
function trackedHead(name) { const k = series() && name ? places(series()).get(name) : undefined; return k === undefined ? -1 : k; }
const score = (name, t, k) => unpack(series()[name])(t * series().layer.length + k);
const classAt = (t, k) => CLASSES[series().head_class[t][k]];
const curveName = (hops) => hops === 0 ? "accuracy on the prompts" : hops === 1 ? "1 hop" : hops + " hops";

function stepsOf(tab) {
  return series() ? series().steps : [...new Set(tab.accuracy.flatMap((curve) => curve.step))].sort((a, b) => a - b);
}

/** A training that was looked at more and more seldom begins too narrow on a plain axis. */
function isLog(steps) {
  return state.log === null ? steps.length > 3 && steps[Math.floor(steps.length / 2)] < steps[steps.length - 1] / 4 : state.log;
}

/** All heads in the plane at one step; the ways that few heads came, or that of the chosen one. */
function trainingPlane(now) {
  const { layer, head, little_at_stake: little } = series(), few = layer.length <= FEW_HEADS, chosen = trackedHead(state.head);
  const all = layer.map((_, k) => k), p = all.map((k) => score("positional_score", now, k)), s = all.map((k) => score("symbolic_score", now, k));
  const x = [], y = [];
  for (const k of chosen >= 0 ? [chosen] : few ? all : []) {
    for (let t = chosen >= 0 ? 0 : Math.max(0, now - 25); t <= now; t++) { x.push(score("positional_score", t, k)); y.push(score("symbolic_score", t, k)); }
    x.push(null); y.push(null);
  }
  const traces = [{ type: "scatter", mode: "lines", x, y, line: { color: colour(chosen >= 0 ? "soft" : "null"), width: chosen >= 0 ? 1.5 : 0.8 }, opacity: 0.7, hoverinfo: "skip", showlegend: false }];
  for (const name of AT_ITS_LAYER) {
    const members = all.filter((k) => classAt(now, k) === name), names = members.map((k) => headName(layer[k], head[k]));
    const faded = little ? ", " + members.filter((k) => little[now][k] === "1").length + " little at stake" : "";
    traces.push({ type: "scatter", mode: few ? "markers+text" : "markers", name: name + " (" + members.length + faded + ")", x: members.map((k) => p[k]), y: members.map((k) => s[k]), text: few ? together(members, p, s, (k) => headName(layer[k], head[k])) : names, customdata: names, textposition: "top right", textfont: { size: 10 }, hovertemplate: "%{customdata}<br>positional %{x:.3f}, symbolic %{y:.3f}<extra></extra>", marker: { size: few ? 10 : 7, color: COLOURS[name], symbol: SYMBOLS[name], opacity: 0.85, line: { width: name === "mixed" ? 0.8 : 0, color: colour("soft") } } });
  }
  const shapes = chosen >= 0 && !missing(p[chosen]) ? [ringed(p[chosen], s[chosen])] : [];
  return { traces, layout: { xaxis: { ...PLANE_AXES.xaxis, range: [-0.05, 1.2] }, yaxis: { ...PLANE_AXES.yaxis, range: [-0.05, 1.08] }, shapes: [...corners(run().tabs.training), ...shapes], showlegend: true, uirevision: "training", margin: { l: 46, r: 8, t: 26, b: 40 } } };
}

/** Rows of one picture over the same steps, from above: their height, the name of their axis and what is drawn there. */
function trainingRows(tab, steps, place) {
  const x = steps.map(place), at = { x, text: steps };
  const line = (more) => ({ type: "scatter", mode: steps.length > 40 ? "lines" : "lines+markers", marker: { size: 4 }, ...more });
  const edge = (y, more) => ({ ...at, y, type: "scatter", mode: "lines", line: { width: 1, color: colour("null") }, hoverinfo: "skip", showlegend: false, ...more });
  const curves = tab.accuracy.map((curve, k) => line({ x: curve.step.map(place), text: curve.step, y: curve.accuracy, name: curveName(curve.hops), line: { color: PALETTE[k % PALETTE.length], width: 1.8 }, hovertemplate: "step %{text}: %{y:.3f}" }));
  if (!series()) return [{ high: 3, title: "accuracy", range: [-0.02, 1.04], traces: curves }];
  const { layer, head, separated, first_pure: first, pure_since: since } = series(), all = layer.map((_, k) => k), null_ = Boolean(separated.separation_null_low);
  const grey = colour("null") + "66";
  const apart = [
    ...(null_ ? [edge(separated.separation_null_low), edge(separated.separation_null_high, { fill: "tonexty", fillcolor: grey, name: "least to most of the null's draws (no verdict)", showlegend: true })] : []),
    line({ ...at, y: separated.separation, name: "mean |positional − symbolic|", line: { color: colour("ink"), width: 1.6, dash: "dash" }, hovertemplate: "step %{text}: %{y:.3f}" }),
  ];
  const counts = AT_ITS_LAYER.map((name) => ({
    ...at, y: steps.map((_, t) => all.filter((k) => classAt(t, k) === name).length), name, showlegend: false, hovertemplate: "step %{text}: %{y} " + name + "<extra></extra>",
    ...(steps.length > 1 ? { type: "scatter", mode: "lines", stackgroup: "classes", line: { width: 0.5, color: COLOURS[name] }, fillcolor: COLOURS[name] } : { type: "bar", textposition: "none", marker: { color: COLOURS[name] } }),
  }));
  const ofNull = !null_ ? [] : ["low", "high"].map((end) => edge(separated["pure_share_null_" + end].map((share) => missing(share) ? null : share * layer.length), { line: { color: colour("ink"), width: 1.2, dash: "dot" }, hoverinfo: null, hovertemplate: "pure heads of the null's draws: " + (end === "low" ? "at least" : "at most") + " %{y:.0f}<extra></extra>", name: "pure heads of the null" }));
  const most = Math.max(...head) + 1;
  const marks = ["positional", "symbolic"].map((name) => {
    const members = all.filter((k) => !missing(first[k]) && classAt(steps.length - 1, k) === name), names = members.map((k) => headName(layer[k], head[k]));
    return { type: "scatter", mode: "markers", x: members.map((k) => place(first[k])), y: members.map((k) => layer[k] + 0.8 * ((head[k] + 0.5) / most - 0.5)), customdata: names, text: members.map((k) => headName(layer[k], head[k]) + " " + name + ": first pure at step " + first[k] + ",<br>and since step " + since[k] + " to the end"), hovertemplate: "%{text}<extra></extra>", showlegend: false, name, marker: { size: names.map((one) => one === state.head ? 13 : 7), color: COLOURS[name], symbol: SYMBOLS[name], line: { width: 1, color: colour("paper") } } };
  });
  const rows = [
    { high: 3, title: curves.length ? "accuracy, separation" : "separation", range: [-0.02, 1.04], traces: [...curves, ...apart] },
    { high: 3, title: "heads by class", range: [0, layer.length], traces: [...counts, ...ofNull] },
    { high: 2, title: "layer", axis: { dtick: Math.ceil((Math.max(...layer) + 1) / 5), tick0: 0 }, range: [-0.7, Math.max(...layer) + 0.7], traces: [...marks, edge(steps.map(() => null))], words: marks.some((one) => one.x.length) ? "heads that end pure, when they first were" : "no head ends pure" },
  ];
  const chosen = trackedHead(state.head);
  if (chosen >= 0) rows.push({ high: 2, title: "head " + state.head, range: [-0.02, 1.04], traces: ["positional_score", "symbolic_score"].map((name) => line({ ...at, y: steps.map((_, t) => score(name, t, chosen)), line: { color: HUES[name], width: 1.6 }, showlegend: false, hovertemplate: "step %{text}: " + words(name) + " %{y:.3f}<extra></extra>" })) });
  return rows;
}

function overSteps(tab, steps, now, place) {
  const rows = trainingRows(tab, steps, place), whole = rows.reduce((sum, row) => sum + row.high, 0), gap = 0.045;
  const layout = { xaxis: { title: { text: "training step" }, type: isLog(steps) ? "log" : "linear", dtick: isLog(steps) ? 1 : undefined, anchor: "y" + (rows.length > 1 ? rows.length : ""), ...(steps.length > 1 ? {} : { tickvals: steps }) }, annotations: [], shapes: stepMark(place(steps[now])), showlegend: true, barmode: "stack", uirevision: "training" + isLog(steps), margin: { l: 46, r: 10, t: 26, b: 40 } };
  let top = 1;
  const traces = rows.flatMap((row, k) => {
    const number = k ? String(k + 1) : "", low = k === rows.length - 1 ? 0 : top - (1 - gap * (rows.length - 1)) * row.high / whole;
    layout["yaxis" + number] = { domain: [low, top], range: row.range, title: { text: row.title }, nticks: 5, ...row.axis };
    if (row.words) layout.annotations.push({ xref: "paper", x: 0.01, yref: "paper", y: top, yanchor: "bottom", xanchor: "left", text: row.words, showarrow: false, font: { size: 11, color: colour("soft") } });
    top = low - gap;
    return row.traces.map((trace) => ({ ...trace, yaxis: "y" + number }));
  });
  return { traces, layout };
}

const stepMark = (x) => [{ type: "line", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: colour("ink"), width: 1.5, dash: "dot" } }];

/** What the pictures over steps are drawn from, a row per step. */
function trainingTable(tab, steps) {
  const found = series(), apart = found ? Object.keys(found.separated) : [];
  const right = tab.accuracy.map((curve) => new Map(curve.step.map((step, k) => [step, curve.accuracy[k]])));
  const counts = (t) => !found ? [] : AT_ITS_LAYER.map((name) => found.layer.filter((_, k) => classAt(t, k) === name).length);
  return {
    names: ["step", ...tab.accuracy.map(({ hops }) => hops ? "accuracy_" + hops + "_hops" : "accuracy"), ...(found ? AT_ITS_LAYER : []), ...apart],
    rows: steps.map((step, t) => [step, ...right.map((one) => one.get(step)), ...counts(t), ...apart.map((name) => found.separated[name][t])]),
  };
}

function drawTraining(panel) {
  Object.assign(training, { renew: () => false, remark: () => {} });
  let tab = run().tabs.training, steps = stepsOf(tab);
  if (!steps.length) { panel.append(el("p", { class: "hint" }, "No step has been looked at yet.")); return; }
  const last = () => steps.length - 1, wanted = () => state.step === null ? last() : nearest(steps, state.step);
  const place = (step) => isLog(steps) ? Math.max(step, (steps.find((one) => one > 0) || 2) / 2) : step;
  let now = wanted();

  const go = (point) => {
    if (typeof point.customdata === "string") choose(point.customdata);
    const first = typeof point.customdata === "string" ? series().first_pure[trackedHead(point.customdata)] : point.text;
    move(nearest(steps, Number(first)));
  };
  const plane = !series() ? null : picture("training", "Heads in the plane at one step", () => trainingPlane(now),
    () => ({ names: ["step", "layer", "head", "positional_score", "symbolic_score", "head_class"], rows: steps.flatMap((step, t) => series().layer.map((layer, k) => [step, layer, series().head[k], score("positional_score", t, k), score("symbolic_score", t, k), classAt(t, k)])) }),
    { size: "tall", note: "class at γ = " + tab.gamma + "; queries: " + series().queries + ", τ = " + short(series().tau) + "; click: the way of one head", click: (point) => { if (point.customdata) choose(point.customdata); } });
  const over = picture("over-training", "Accuracy, classes of heads, and when heads became pure, over training", () => overSteps(tab, steps, now, place), () => trainingTable(tab, steps),
    { size: series() ? "tallest" : "tall", note: "dotted upright: the step shown; click a mark: its head at that step" + (series() && series().separated.separation_null_low ? "; dotted lines in the classes: pure heads of the null's draws" : ""), click: go });

  const output = el("output", { "aria-live": "off" });
  const say = () => { output.textContent = "step " + steps[now]; slider.max = String(last()); slider.value = String(now); };
  const move = (k) => {
    now = k; state.step = now === last() ? null : steps[now]; // at the end: whatever step is the newest
    say();
    if (plane) plane.draw();
    Plotly.relayout(over.plot, { shapes: stepMark(place(steps[now])) });
    writeHash();
  };
  const slider = el("input", { type: "range", id: "step", min: 0, max: last(), step: 1, "aria-label": "Training step", oninput: (event) => move(Number(event.target.value)) });
  let playing = null;
  const stop = () => { clearInterval(playing); playing = null; play.textContent = "Play"; };
  const play = el("button", { type: "button", id: "play", onclick: () => {
    if (playing) { stop(); return; }
    play.textContent = "Stop";
    if (now === last()) move(0);
    playing = setInterval(() => { if (now >= last() || !slider.isConnected) stop(); else move(now + 1); }, 120);
  } }, "Play");
  say();
  const which = tab.series.length;
  panel.append(el("div", { class: "bar" }, play, slider, output,
    chooser("steps", ["linear", "logarithmic"], Number(isLog(steps)), (k) => { state.log = k === 1; over.draw(); }),
    which > 1 ? chooser("queries and τ", tab.series.map((one) => one.queries + ", " + short(one.tau)), state.series, (k) => { state.series = k; show(); }) : null));
  panel.append(el("div", { class: "pair" }, plane ? plane.root : null, over.root));

  training.remark = () => { if (plane) plane.draw(); over.draw(); };
  training.renew = () => {
    const fresh = run().tabs.training;
    if (!slider.isConnected || !fresh || fresh.series.length !== which) return false;
    tab = fresh; steps = stepsOf(tab); now = wanted();
    say();
    training.remark();
    writeHash();
    return true;
  };
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
