// Where does my model lie? Its statistics beside those of an atlas's other models.

function drawPlace(panel) {
  const tab = run().tabs.place, at = tab.at, now = at[Math.min(state.tau, at.length - 1)];
  const told = el("div", { class: "section", id: "place-words" }, el("h2", {}, "Where does my model lie?"), el("p", { class: "hint" }, "atlas: " + tab.name + "; τ = " + short(now.tau)), now.words.map((text) => el("p", {}, text)));
  panel.append(told);
  if (now.models) panel.append(el("div", { class: "section" }, placePicture(now).root));
  panel.append(tableSection(now.table));
}

function placePicture(now) {
  const of = (name) => now.table.columns[now.table.names.indexOf(name)], names = of("statistic"), value = of("value"), low = of("low"), high = of("high");
  const reach = (k, end) => missing(end[k]) || missing(value[k]) ? 0 : Math.abs(end[k] - value[k]);
  const others = now.others, order = names.slice().reverse();
  return picture("place", "Every statistic of the model beside those of the other models", () => ({
    traces: [
      { type: "scatter", mode: "markers", name: "nulls", x: others.null_value, y: others.statistic, text: others.model.map(plain), hovertemplate: "null of %{text}: %{x:.3f}<extra></extra>", marker: { symbol: "x-thin-open", size: 7, color: colour("null") } },
      { type: "scatter", mode: "markers", name: "models of the atlas", x: others.value, y: others.statistic, text: others.model.map(plain), hovertemplate: "%{text}: %{x:.3f}<extra></extra>", marker: { size: 9, color: PALETTE[1], opacity: 0.85 } },
      { type: "scatter", mode: "markers", name: plain(now.model), x: value, y: names, hovertemplate: "%{y}: %{x:.3f}<extra></extra>", marker: { symbol: "diamond", size: 10, color: colour("ink") },
        error_x: { type: "data", symmetric: false, array: value.map((_, k) => reach(k, high)), arrayminus: value.map((_, k) => reach(k, low)), thickness: 1.2, width: 3, color: colour("ink") } },
    ],
    layout: { xaxis: { range: [-1.05, 1.05], title: { text: "value" } }, yaxis: { categoryorder: "array", categoryarray: order, automargin: true }, showlegend: true, margin: { l: 130, r: 10, t: 30, b: 40 } },
  }), () => ({ names: ["model", "statistic", "value", "null_value"], rows: [...names.map((name, k) => [now.model, name, value[k], of("null_value")[k]]), ...others.model.map((name, k) => [name, others.statistic[k], others.value[k], others.null_value[k]])] }), { size: "tall", note: "bars: 95 % intervals over prompts" });
}
