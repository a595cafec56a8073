// Swaps at every depth: all heads against depth, and the curves of the one that is chosen.

const depths = { map: null, curves: null };

function depthsAt() { const tab = run().tabs.depths; return tab.at[Math.min(state.tau, tab.at.length - 1)]; }

/** One head's row: both scores, their ends and what is covered, by depth; and at its own layer. */
function depthRow(name) {
  const now = depthsAt(), count = run().tabs.depths.depths.length, row = places(now).get(name);
  const read = (column) => { const get = unpack(now[column]); return run().tabs.depths.depths.map((_, c) => get(row * count + c)); };
  return { row, layer: now.layer[row], read, k: headIndex(name) };
}

/** The head whose curves are drawn: the chosen one, else the first that turns. */
function depthHead() {
  const first = depthsAt().turning.columns[0];
  return state.head || (first && first[0]) || headName(depthsAt().layer[0], depthsAt().head[0]);
}

const depthWords = (depth) => depth ? "swapped at layer " + depth : "prompt permuted";

function depthMap() {
  const tab = run().tabs.depths, now = depthsAt(), overviewNow = at(), count = tab.depths.length;
  const names = now.layer.map((layer, r) => headName(layer, now.head[r])), own = count + 0.3, strip = count + 1.5;
  const [p, s, covered] = ["positional_score", "symbolic_score", "covered_share"].map((column) => unpack(now[column]));
  const words = (name, where, positional, symbolic, rest) => name + " " + classWords(headIndex(name)) + "<br>" + where + ": positional " + number(positional) + ", symbolic " + number(symbolic) + rest;
  const z = [], thin = [], text = [];
  names.forEach((name, r) => {
    const cells = tab.depths.map((_, c) => r * count + c), enough = (c) => !missing(p(c));
    z.push(cells.map((c) => enough(c) ? p(c) - s(c) : null));
    thin.push(cells.map((c) => missing(covered(c)) || enough(c) ? null : 0));
    text.push(cells.map((c, d) => missing(covered(c)) ? "" : words(name, depthWords(tab.depths[d]), p(c), s(c), "<br>swaps run hold " + Math.round(100 * covered(c)) + " % of its weight")));
  });
  const across = tab.depths.map((_, c) => c), rows = names.map((_, r) => r);
  const ofOwn = (column) => names.map((name) => overviewNow[column][headIndex(name)]);
  const ownText = names.map((name) => { const k = headIndex(name); return [words(name, "at its own layer", overviewNow.positional_score[k], overviewNow.symbolic_score[k], "")]; });
  const leaning = { zmin: -1, zmax: 1, colorscale: [[0, COLOURS.symbolic], [0.5, colour("pale")], [1, COLOURS.positional]] };
  const cells = { type: "heatmap", y: rows, customdata: names, hovertemplate: "%{text}<extra></extra>", hoverongaps: false, xgap: 0.5, ygap: names.length > 60 ? 0 : 1 };
  const positional = ofOwn("positional_score"), symbolic = ofOwn("symbolic_score");
  const carry = names.map((name) => overviewNow.carry_depth ? overviewNow.carry_depth[headIndex(name)] : null);
  const marked = rows.filter((r) => !missing(carry[r]));
  const traces = [
    { ...cells, ...leaning, x: across, z, text, colorbar: { thickness: 8, len: 0.5, outlinewidth: 0, tickvals: [-1, 0, 1], ticktext: ["follows", "neither or both", "stays"] } },
    { ...cells, x: across, z: thin, text, colorscale: [[0, colour("null")], [1, colour("null")]], showscale: false },
    { ...cells, ...leaning, x: [own], z: rows.map((r) => [missing(positional[r]) ? null : positional[r] - symbolic[r]]), text: ownText, showscale: false },
    { ...cells, x: [strip], z: names.map((name) => { const code = overviewNow.head_class[headIndex(name)]; return [code < 0 ? null : code]; }), text: ownText, showscale: false,
      colorscale: CLASSES.flatMap((name, k) => [k, k + 1].map((end) => [end / CLASSES.length, COLOURS[name]])), zmin: -0.5, zmax: CLASSES.length - 0.5 },
    { type: "scatter", mode: "lines", x: marked.flatMap((r) => { const c = tab.depths.indexOf(carry[r]) + 0.5; return [c, c, null]; }), y: marked.flatMap((r) => [r - 0.5, r + 0.5, null]), line: { color: colour("ink"), width: 2.5 }, hoverinfo: "skip" },
  ];
  const layers = [...new Set(now.layer)], middle = (layer) => { const all = rows.filter((r) => now.layer[r] === layer); return (all[0] + all[all.length - 1]) / 2; };
  const every = Math.max(1, Math.ceil(count / 16));
  const ticks = across.filter((c) => c % every === 0);
  return { traces, layout: {
    shapes: depthShapes(), margin: { l: 40, r: 8, t: 8, b: 40 },
    xaxis: { title: { text: "swapped at layer (0: in the prompt)" }, range: [-0.5, strip + 0.5], tickvals: [...ticks, own, strip], ticktext: [...ticks.map((c) => String(tab.depths[c])), "own", "class"], showgrid: false },
    yaxis: { title: { text: "layer" }, range: [-0.5, names.length - 0.5], tickvals: layers.map(middle), ticktext: layers.map(String), showgrid: false },
  } };
}

/** Lines between layers, and the row of the head whose curves are drawn. */
function depthShapes() {
  const now = depthsAt(), last = run().tabs.depths.depths.length + 2;
  const shapes = now.layer.slice(1).flatMap((layer, r) => layer === now.layer[r] ? [] : [{ type: "line", x0: -0.5, x1: last, y0: r + 0.5, y1: r + 0.5, line: { color: colour("paper"), width: 1 } }]);
  const { row } = depthRow(depthHead());
  return [...shapes, { type: "rect", x0: -0.5, x1: last, y0: row - 0.5, y1: row + 0.5, line: { color: colour("ink"), width: now.layer.length > 60 ? 1 : 2 } }];
}

/** What is drawn of a head: points below its own layer, and the own layer last. */
function depthPoints(name) {
  const { layer, read, k } = depthRow(name), now = at(), tab = run().tabs.depths;
  const keep = tab.depths.map((depth, c) => c).filter((c) => tab.depths[c] < layer);
  const whole = (column) => [...keep.map((c) => read(column)[c]), now[column] ? now[column][k] : null];
  const covered = [...keep.map((c) => read("covered_share")[c]), 1];
  return { layer, x: [...keep.map((c) => tab.depths[c]), layer], covered, whole };
}

function depthCurves() {
  const name = depthHead(), { layer, x, whole } = depthPoints(name);
  const mode = x.every((depth, c) => c === 0 || depth - x[c - 1] <= 1) ? "lines+markers" : "markers"; // no line over depths that were not run
  const traces = ["positional", "symbolic"].flatMap((kind) => {
    const y = whole(kind + "_score"), low = whole(kind + "_score_low"), high = whole(kind + "_score_high");
    const ends = low.some((v) => !missing(v)) ? { error_y: { type: "data", symmetric: false, thickness: 0.8, width: 2, array: y.map((v, c) => Math.max(0, high[c] - v)), arrayminus: y.map((v, c) => Math.max(0, v - low[c])) } } : {};
    const hover = "swapped at layer %{x}<br>" + kind + " %{y:.3f}<extra></extra>";
    return [
      { type: "scatter", mode, name: kind, x, y, connectgaps: false, line: { color: COLOURS[kind], width: 2 }, marker: { size: 7, symbol: SYMBOLS[kind] }, ...ends, hovertemplate: hover },
    ];
  });
  return { traces, layout: {
    xaxis: { title: { text: "swapped at layer (0: in the prompt)" }, range: [-0.5, Math.max(...depthsAt().layer) + 0.5] }, yaxis: { title: { text: "score" }, range: [-0.04, 1.04] }, showlegend: true, margin: { l: 46, r: 10, t: 26, b: 40 },
    shapes: [{ type: "line", yref: "paper", x0: layer, x1: layer, y0: 0, y1: 1, line: { color: colour("ink"), width: 1, dash: "dot" } }],
  } };
}

function depthTitle() {
  const name = depthHead(), k = headIndex(name), carry = at().carry_depth ? at().carry_depth[k] : null;
  return "Head " + name + ": " + classWords(k) + (missing(carry) ? "" : ", carry depth " + carry);
}

function drawDepths(panel) {
  const tab = run().tabs.depths, now = depthsAt(), count = tab.depths.length;
  const table = () => {
    const columns = ["positional_score", "symbolic_score", "covered_share"];
    const cells = now.layer.flatMap((layer, r) => tab.depths.map((depth, c) => [layer, now.head[r], depth, ...columns.map((column) => unpack(now[column])(r * count + c))]));
    return { names: ["layer", "head", "depth", ...columns], rows: cells.filter((row) => !missing(row[3])) };
  };
  depths.map = picture("depths", "All heads against the depth at which blocks changed places", depthMap, table, {
    size: "tall", note: "layer 0 below; in a layer heads that stay in place first; upright bars: carry depth; grey: under half of the head's weight was run",
    click: (point) => { const name = depthsAt().layer[point.y] === undefined ? null : headName(depthsAt().layer[point.y], depthsAt().head[point.y]); if (name) choose(name); },
  });
  depths.map.plot.style.minHeight = Math.min(1400, Math.max(360, 3.5 * now.layer.length)) + "px";
  depths.title = el("h2", { id: "depth-title", role: "status" }, depthTitle());
  depths.curves = picture("depth-curve", "Both scores of one head by the depth of the swap", depthCurves, () => {
    const { x, covered, whole } = depthPoints(depthHead()), columns = ["positional_score", "symbolic_score"];
    return { names: ["head", "depth", ...columns, "covered_share"], rows: x.map((depth, c) => [depthHead(), depth, ...columns.map((column) => whole(column)[c]), covered[c]]) };
  }, { size: "middle", note: "dotted: its own layer; bars: 95 % over prompts" });
  const taus = heads().taus;
  if (taus.length > 1) panel.append(el("div", { class: "bar" }, chooser("τ", taus.map(short), state.tau, (k) => { state.tau = k; show(); })));
  panel.append(headline(), el("div", { class: "pair lead deep" }, depths.map.root, el("div", { class: "upright" }, depths.title, depths.curves.root)), el("section", { class: "section apart" },
    now.turning.rows ? [el("h2", {}, now.turning.title), el("p", { class: "hint" }, now.turning.note), grid(now.turning, { go: (k) => choose(now.turning.columns[0][k]), what: now.turning.title, render: (name, value) => name === "class" ? el("span", { class: "class-" + value.split(" ")[0] }, value) : null })]
      : el("p", { class: "hint" }, "No head follows at its own layer and stays in place below it.")));
}

/** Another head is chosen: its row is marked, its curves are drawn. */
function remarkDepths() {
  Plotly.relayout(depths.map.plot, { shapes: depthShapes() });
  depths.title.textContent = depthTitle();
  depths.curves.draw();
}
