// Who writes the place that carried heads read: writers on the left, readers on the right, both at their layers.

function writersGraph() {
  const tab = run().tabs.writers, layerOf = (name) => Number(name.split(":")[0]);
  const heights = new Map();
  for (const name of tab.readers) heights.set(name, Math.max(layerOf(name), ...[...heights.values()].map((height) => height + 0.9)));
  const writers = [...new Set(tab.writer)], places = new Map();
  for (const name of writers) {
    const same = writers.filter((other) => layerOf(other) === layerOf(name));
    places.set(name, [0.24 * (same.indexOf(name) - same.length + 1), layerOf(name)]);
  }
  const lines = tab.writer.map((writer, k) => {
    const [x, y] = places.get(writer), effect = tab.effect[k], told = tab.beyond[k];
    return { type: "scatter", mode: "lines", x: [x, 3], y: [y, heights.get(tab.reader[k])], hoverinfo: "skip",
      line: { color: told ? COLOURS.positional : colour("null"), width: Math.max(0.5, 7 * (effect || 0)) }, opacity: told ? 0.85 : 0.35 };
  });
  const told = lines.filter((_, k) => tab.beyond[k]), not = lines.filter((_, k) => !tab.beyond[k]);
  const points = (names, place, kind, at) => ({ type: "scatter", mode: "markers+text", x: names.map((name) => place(name)[0]), y: names.map((name) => place(name)[1]), customdata: names, text: names, textposition: at,
    textfont: { size: 10 }, marker: { color: COLOURS[kind], symbol: SYMBOLS[kind], size: 10 }, hovertemplate: "%{customdata} " + kind + "<extra></extra>" });
  return { traces: [...not, ...told, points(writers, (name) => places.get(name), "positional", "top center"), points(tab.readers, (name) => [3, heights.get(name)], "carried", "middle right")], layout: {
    margin: { l: 40, r: 8, t: 8, b: 40 }, yaxis: { title: { text: "layer" }, showgrid: false },
    xaxis: { tickvals: [0, 3], ticktext: ["positional heads", "carried heads"], range: [Math.min(...[...places.values()].map(([x]) => x)) - 0.3, 3.6], showgrid: false },
  } };
}

function drawWriters(panel) {
  const tab = run().tabs.writers;
  if (tab.nobody) { panel.append(el("p", { class: "hint" }, tab.nobody[0].toUpperCase() + tab.nobody.slice(1) + ".")); return; }
  const graph = picture("writers", "From positional heads to the carried heads whose place is lost without them", writersGraph,
    () => ({ names: ["writer", "reader", "effect", "beyond"], rows: tab.writer.map((writer, k) => [writer, tab.reader[k], tab.effect[k], tab.beyond[k]]) }),
    { size: "tall", note: "width: effect of silencing that one head; grey: other heads of the layer do as much", click: (point) => { if (point.customdata) choose(point.customdata); } });
  panel.append(el("div", { class: "pair lead" }, graph.root, el("div", {},
    el("div", { class: "section-head" }, el("h3", {}, tab.table.title)), el("p", { class: "hint" }, tab.table.note),
    grid(tab.table, { go: (k) => choose(tab.table.columns[0][k]), what: tab.table.title }))));
}
