// Heads to come back to, with a note each: in the link, and as a file.

const LONGEST_NOTE = 500, MOST_PINS = 100;

/** Pins as they stand in a link; what is no head of this run, or no text, is left out. */
function readPins(text) {
  const found = new Map();
  try {
    for (const [name, note] of Object.entries(JSON.parse(text || "{}"))) if (headIndex(name) >= 0 && typeof note === "string" && found.size < MOST_PINS) found.set(name, note.slice(0, LONGEST_NOTE));
  } catch (damaged) { /* a link that somebody has changed */ }
  return found;
}

function setPin(name, note) {
  if (note === null) state.pins.delete(name); else if (state.pins.size < MOST_PINS || state.pins.has(name)) state.pins.set(name, note.slice(0, LONGEST_NOTE));
  writeHash();
  if (state.tab === "overview") remark();
}

/** On a head's card: pin it, and write down why. */
function pinField(name) {
  const note = el("textarea", { id: "note", rows: 2, maxlength: LONGEST_NOTE, placeholder: "a note, kept in the link", "aria-label": "Note on head " + name, hidden: !state.pins.has(name), oninput: (event) => setPin(name, event.target.value) });
  note.value = state.pins.get(name) || "";
  const button = el("button", { type: "button", id: "pin", "aria-pressed": String(state.pins.has(name)), onclick: () => {
    setPin(name, state.pins.has(name) ? null : "");
    note.hidden = !state.pins.has(name);
    button.setAttribute("aria-pressed", String(state.pins.has(name)));
    button.textContent = state.pins.has(name) ? "★ pinned" : "☆ pin this head";
    if (!note.hidden) note.focus();
  } }, state.pins.has(name) ? "★ pinned" : "☆ pin this head");
  return el("div", { class: "pin" }, button, note);
}

/** All of them, on the card of the model. */
function pinList() {
  if (!state.pins.size) return [];
  const rows = () => [...state.pins].map(([name, note]) => ({ head: name, note, layer: heads().layer[headIndex(name)], index: heads().head[headIndex(name)], class: className(headIndex(name)), positional_score: at().positional_score[headIndex(name)], symbolic_score: at().symbolic_score[headIndex(name)] }));
  return [el("h3", {}, "Pinned"), el("ul", { class: "pins", id: "pins" }, [...state.pins].map(([name, note]) => el("li", {}, el("button", { type: "button", onclick: () => choose(name) }, "★ " + name), " ", note))),
    el("p", {}, el("button", { type: "button", id: "export-pins", onclick: () => download(fileName("pins") + ".json", JSON.stringify({ run: run().name, model: (run().settings || {}).model, tau: tauNow(), pins: rows() }, null, 2) + "\n", "application/json") }, "Pins and notes as JSON"))];
}
