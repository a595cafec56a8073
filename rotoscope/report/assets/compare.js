// Two runs beside each other: how they differ in words, arrows in the plane, and the heads in order of their difference.

const MOST_COMPARED = 500;

/** The comparison at the tau that is chosen, head by head, the largest difference first. */
function compared() {
  const all = runs[1].comparison.at, tau = runs[0].tabs.overview ? runs[0].tabs.overview.taus[state.tau] : undefined;
  const now = all.find((one) => one.first.tau === tau) || all[0];
  const at = (side, k) => [side.positional_score[k], side.symbolic_score[k]];
  const rows = now.layer.map((layer, k) => ({
    name: headName(layer, now.head[k]), layer, head: now.head[k], from: at(now.first, k), to: at(now.second, k),
    was: CLASSES[now.first.class[k]], is: CLASSES[now.second.class[k]], p: now.p_value && now.p_value[k], differs: now.differs && now.differs[k],
  })).filter((row) => row.was && row.is);
  for (const row of rows) row.moved = Math.hypot(row.to[0] - row.from[0], row.to[1] - row.from[1]);
  return { now, rows: rows.sort((x, y) => y.moved - x.moved) };
}

/** The picture that is shown, and where in it each head has come to. */
const comparing = { plane: null, rows: [] };
function compareShapes() {
  const shapes = corners(runs[0].tabs.overview || runs[0].tabs.training), row = comparing.rows.find(({ name }) => name === state.head);
  return row ? [...shapes, ringed(...row.to)] : shapes;
}

function remarkCompare() { if (comparing.plane && comparing.plane.root.isConnected) Plotly.relayout(comparing.plane.plot, { shapes: compareShapes() }); }

/** How the runs differ, before anything is drawn. */
function differences(now) {
  const told = runs[1].comparison, value = (x) => missing(x) ? "not set" : x;
  const about = ({ name, subject, settings }) => [...new Set([(subject || {}).name, (settings || {}).task].filter((one) => one && one !== name))].join(", ");
  const named = (k) => el("span", {}, el("strong", {}, "AB"[k]), " ", runs[k].name + (about(runs[k]) ? " (" + about(runs[k]) + ")" : ""));
  const pairs = told.settings.map(([name, a, b]) => words(name) + ": " + value(a) + " → " + value(b));
  const few = pairs.length > 4 ? el("details", {}, el("summary", {}, pairs.length + " settings differ (A → B)"), el("ul", {}, pairs.map((text) => el("li", {}, text))))
    : el("p", {}, pairs.length ? "They differ in " + pairs.join("; ") + "." : "Both runs were made with the same settings.");
  const taus = now && now.first.tau !== now.second.tau ? ["No τ is the same: A at " + short(now.first.tau) + ", B at " + short(now.second.tau) + "."] : [];
  const ends = now && !missing(now.first.step) ? ["A at step " + now.first.step + ", B at step " + now.second.step + "."] : [];
  return el("div", { class: "compared", id: "differences" },
    el("p", {}, named(0), " → ", named(1)),
    few,
    [...(now ? now.words : []), ...ends, ...taus, ...told.words].map((text) => el("p", {}, text)));
}

function arrows(rows, name, drawing) {
  const described = (r) => r.name + ": " + r.was + " → " + r.is + "<br>moved " + fixed(r.moved, 3) + (missing(r.p) ? "" : ", p = " + number(r.p));
  return [
    { type: "scatter", mode: "lines", x: rows.flatMap((r) => [r.from[0], r.to[0], null]), y: rows.flatMap((r) => [r.from[1], r.to[1], null]), line: { color: drawing.colour, width: drawing.width }, opacity: drawing.opacity, hoverinfo: "skip", showlegend: false },
    { type: "scatter", mode: "markers", name, x: rows.map((r) => r.to[0]), y: rows.map((r) => r.to[1]), customdata: rows.map((r) => r.name), text: rows.map(described), hovertemplate: "%{text}<extra></extra>", marker: { size: drawing.size, color: drawing.colour, opacity: drawing.opacity, symbol: "arrow", angle: rows.map((r) => Math.atan2(r.to[0] - r.from[0], r.to[1] - r.from[1]) * 180 / Math.PI), angleref: "up" } },
  ];
}

/** Two plans of one kind: what each decided, their losses over each other, their tables side by side. */
function drawPlans(panel, plan) {
  const hues = [], hue = (name) => { if (!hues.includes(name)) hues.push(name); return hues.indexOf(name); };
  const lines = (curves, side, dash) => curves.map((curve) => ({ ...curve, name: side + ": " + curve.name, hue: hue(curve.name), dash, wide: curve.name === "plan" }));
  const both = (one) => [...lines(one.first, "A", "solid"), ...lines(one.second, "B", "dot")];
  const own = (part, side) => part.names.map((name) => name + " " + side);
  const joined = (one) => ({ ...one, names: [...one.names, ...own(one.first, "A"), ...own(one.second, "B")], columns: [...one.columns, ...one.first.columns, ...one.second.columns] });
  panel.append(differences(null),
    el("ul", { class: "said" }, el("li", {}, el("strong", {}, "A"), " ", plan.said.first), el("li", {}, el("strong", {}, "B"), " ", plan.said.second)),
    ...plan.panels.map((one, p) => losses("plans-" + p, one.title, both(one), plan)), ...plan.tables.filter((one) => one.rows).map((one) => tableSection(joined(one))));
}

function drawCompare(panel) {
  if (runs[1].comparison.plan) { drawPlans(panel, runs[1].comparison.plan); return; }
  if (!runs[1].comparison.at.length) { panel.append(differences(null)); return; }
  const { now, rows } = compared(), tested = Boolean(now.differs), strong = (row) => tested ? row.differs : row.was !== row.is;
  const sure = rows.filter(strong), unsure = rows.filter((row) => !strong(row)), rest = tested ? " that could be chance" : " of the same class";
  const everything = () => ({ names: ["layer", "head", "differs", "p_value", "class_a", "class_b", "positional_a", "symbolic_a", "positional_b", "symbolic_b"], rows: rows.map((r) => [r.layer, r.head, r.differs, r.p, r.was, r.is, ...r.from, ...r.to]) });
  const plane = picture("compare", "Heads in the plane, from A to B", () => ({
    traces: [
      ...arrows(unsure, unsure.length + rest, { colour: colour("null"), width: 0.8, opacity: 0.45, size: 6 }),
      ...CLASSES.flatMap((name) => {
        const members = sure.filter((row) => row.is === name);
        return members.length ? arrows(members, members.length + " to " + name, { colour: colour(name + "-text"), width: 2, opacity: 0.95, size: 11 }) : [];
      }),
    ],
    layout: { ...PLANE_AXES, shapes: compareShapes(), annotations: heads() ? cornerWords(heads()) : [], showlegend: true, margin: { l: 46, r: 8, t: 26, b: 40 } },
  }), everything,
  { size: "tall", note: "arrows from A to B; strong: the head " + (tested ? "differs; grey: it could be chance" : "is of another class; no difference is tested"), click: (point) => { if (point.customdata) choose(point.customdata); } });
  Object.assign(comparing, { plane, rows });
  const listed = rows.slice(0, MOST_COMPARED), take = (value) => listed.map(value);
  const columns = {
    head: (r) => r.name, moved: (r) => r.moved, ...(tested ? { p: (r) => r.p, differs: (r) => r.differs ? "yes" : "" } : {}), "class A": (r) => r.was, "class B": (r) => r.is,
    "positional": (r) => fixed(r.from[0]) + " → " + fixed(r.to[0]), "symbolic": (r) => fixed(r.from[1]) + " → " + fixed(r.to[1]),
  };
  const table = { title: "Heads by how far they moved", names: Object.keys(columns), columns: Object.values(columns).map(take) };
  const tints = (name, value) => name.startsWith("class") ? el("span", { class: "class-" + value }, value) : null;
  panel.append(differences(now), el("div", { class: "pair beside" }, plane.root, el("div", { class: "beside-table" },
    el("div", { class: "section-head" }, el("h2", {}, table.title), csvButton("compared", everything)),
    el("p", { class: "hint" }, "Classes and scores: A, then B."),
    listed.length < rows.length ? el("p", { class: "hint" }, "The first " + listed.length + " of " + rows.length + "; the CSV has them all.") : null,
    grid(table, { go: (k) => choose(listed[k].name), what: table.title, render: tints }))));
}
