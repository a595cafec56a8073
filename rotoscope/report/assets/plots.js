// Pictures: Plotly with our look, three buttons under each, redrawn when the theme changes.

const pictures = new Set();

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); }

function look(layout) {
  const axis = (own) => ({
    gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line"), ticks: "", zeroline: false,
    automargin: true, ...own, title: { font: { size: 12 }, standoff: 6, ...(own && own.title) },
  });
  const made = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("ink"), size: 11.5, family: "system-ui, sans-serif" },
    margin: { l: 46, r: 10, t: 8, b: 40 }, showlegend: false, hovermode: "closest", autosize: true, dragmode: "zoom",
    hoverlabel: { bgcolor: colour("sheet"), bordercolor: colour("line"), font: { color: colour("ink") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11 } }, ...layout,
  };
  for (const name of Object.keys(made)) if (/^[xy]axis\d*$/.test(name)) made[name] = axis(made[name]);
  if (!made.xaxis) made.xaxis = axis({});
  if (!made.yaxis) made.yaxis = axis({});
  return made;
}

const CONFIG = {
  displaylogo: false, responsive: false, showTips: false, showSendToCloud: false, showEditInChartStudio: false, plotlyServerURL: "",
  modeBarButtonsToRemove: ["toImage", "sendDataToCloud", "select2d", "lasso2d", "autoScale2d", "toggleSpikelines"], scrollZoom: false,
};

/** A picture: `make()` gives traces and layout, `table()` what is behind it. */
function picture(what, label, make, table, options = {}) {
  const plot = el("div", { class: "plot", role: "img", "aria-label": label });
  const image = (format) => el("button", {
    type: "button", "aria-label": "Download " + what + " as " + format.toUpperCase(),
    onclick: () => Plotly.downloadImage(plot, { format, filename: fileName(what), width: Math.max(plot.clientWidth, 400), height: Math.max(plot.clientHeight, 300), scale: format === "png" ? 2 : 1 }),
  }, format.toUpperCase());
  const note = el("span", { class: "note" }, options.note || "");
  const root = el("figure", { class: "figure " + (options.size || "") }, plot,
    el("figcaption", {}, note, csvButton(what, table), image("svg"), image("png")));
  root.lastChild.append(enlarge(root));
  const made = {
    root, plot, note,
    draw() {
      const { traces, layout } = make();
      const first = !plot.classList.contains("js-plotly-plot");
      Plotly.react(plot, traces, look(layout), CONFIG);
      if (first && options.click) plot.on("plotly_click", (event) => { if (event.points.length) options.click(event.points[0]); });
    },
  };
  pictures.add(made);
  watcher.observe(plot);
  return made;
}

/** A picture follows its place: windows, notes and cards change how much room there is. */
const watcher = new ResizeObserver((changes) => {
  for (const { target } of changes) {
    const now = target._fullLayout;
    if (now && target.clientWidth && (Math.abs(now.width - target.clientWidth) > 1 || Math.abs(now.height - target.clientHeight) > 1)) Plotly.Plots.resize(target);
  }
});

function forget(one) {
  watcher.unobserve(one.plot);
  if (one.plot.classList.contains("js-plotly-plot")) Plotly.purge(one.plot);
  pictures.delete(one);
}

/** Paper is narrower than most windows; by night it is white, too. */
const PAPER = { width: 660, half: 315, height: 400, tallest: 600 };
let screenTheme = null;
window.addEventListener("beforeprint", () => {
  document.querySelectorAll(".notes details, .further").forEach((one) => { one.open = true; });
  screenTheme = state.theme;
  if (isDark()) setTheme("light");
  for (const one of pictures) if (one.plot._fullLayout) {
    const beside = one.plot.closest(".pair:not(.lead), .side"), high = one.root.classList.contains("tallest") ? PAPER.tallest : beside ? PAPER.half * 1.2 : PAPER.height;
    Plotly.relayout(one.plot, { width: Math.min(beside ? PAPER.half : PAPER.width, one.plot.clientWidth), height: Math.min(high, one.plot.clientHeight) });
  }
});
window.addEventListener("afterprint", () => {
  if (screenTheme === null) { state.theme = null; delete document.documentElement.dataset.theme; } else setTheme(screenTheme);
  drawAll();
});

/** Draw every picture that stands in the page; forget those that do not. */
function drawAll() {
  for (const one of [...pictures]) {
    if (one.root.isConnected) one.draw();
    else forget(one);
  }
}

/** The squares of the plane in which a head counts as pure, as the run gives them. */
function corners({ gamma, pure }) {
  return Object.entries(pure).map(([name, [x, y]]) => ({
    type: "rect", x0: x, x1: x + gamma, y0: y, y1: y + gamma, layer: "below",
    line: { width: 1, color: COLOURS[name] }, fillcolor: COLOURS[name], opacity: 0.2,
  }));
}

/** A ring around the chosen head. */
function ringed(x, y) {
  return { type: "circle", xsizemode: "pixel", ysizemode: "pixel", xanchor: x, yanchor: y, x0: -9, x1: 9, y0: -9, y1: 9, line: { color: colour("ink"), width: 2.5 } };
}

/** The plane, with room above and below for words about its corners. */
const PLANE_AXES = {
  xaxis: { range: [-0.06, 1.06], title: { text: "positional score" }, tickvals: [0, 0.2, 0.4, 0.6, 0.8, 1], constrain: "domain" },
  yaxis: { range: [-0.12, 1.22], title: { text: "symbolic score" }, tickvals: [0, 0.2, 0.4, 0.6, 0.8, 1], scaleanchor: "x", constrain: "domain" },
};

/** What the corners of the plane mean. Plotly writes tags as styles, which the page's policy forbids: plain lines. */
function cornerWords({ noun }) {
  const words = (x, y, text) => ({ x, y, text: plain(text), xanchor: x > 0.5 ? "right" : "left", yanchor: "middle", showarrow: false, font: { size: 12, weight: 700, color: colour("ink") } });
  return [words(1.04, -0.08, "stays put"), words(1.04, 1.17, "looks at everything"), words(-0.04, 1.09, "follows the " + noun)];
}

/** Text that Plotly shows as it is: it would read tags and entities. */
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
