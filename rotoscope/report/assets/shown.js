// The prompt as text, with the attention of the chosen head as a heat over its tokens: before a swap, after it at the head's
// own layer, and after the same swap carried out in the prompt.

const PERMUTED = PALETTE[0];

function shownPrompt() { const tab = heads() && heads().shown; return tab && tab.token ? tab : null; }

/** Bytes that stand in the page as text, deflated: inflated once, before the page is drawn. */
const inflated = new Map();
async function inflate(some) {
  const shown = some.map((one) => one.tabs.overview && one.tabs.overview.shown).filter(Boolean);
  const texts = shown.flatMap((tab) => [tab.attention, tab.swaps, tab.vectors && tab.vectors.keys, tab.permuted && tab.permuted.attention, ...Object.values(tab.sharp || {})]).filter((text) => text && !inflated.has(text));
  await Promise.all(texts.map(async (text) => {
    const packed = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    inflated.set(text, new Uint8Array(await new Response(stream).arrayBuffer()));
  }));
}
const bytesOf = (text) => inflated.get(text);
const share = (code) => (code / 255) ** 2;
const percent = (x) => x >= 0.995 ? "100 %" : x >= 0.0995 ? Math.round(100 * x) + " %" : x >= 0.0005 ? (100 * x).toFixed(1) + " %" : "0 %";

/** Where every block starts and stops. */
const spanned = new WeakMap();
function spans(tab) {
  if (!spanned.has(tab)) {
    const found = [];
    tab.block.forEach((block, p) => { if (block >= 0) { if (!found[block]) found[block] = [p, p]; found[block][1] = p + 1; } });
    tab.short = found.map(([a, b]) => tab.token.slice(a, b).join("").length <= 40);
    spanned.set(tab, found);
  }
  return spanned.get(tab);
}

/** What stands at every position after two blocks changed places; contents keep their order where lengths differ. */
function exchanged(tab, first, second) {
  const [a, b] = spans(tab)[first], [c, d] = spans(tab)[second], range = (from, to) => Array.from({ length: to - from }, (_, k) => from + k);
  return [...range(0, a), ...range(c, d), ...range(b, c), ...range(a, b), ...range(d, tab.token.length)];
}

/** The swaps of a head that are in this page, heaviest first: the blocks, and where the numbers of each begin. */
const listed = new WeakMap();
function swapsOf(k) {
  const tab = shownPrompt();
  if (!listed.has(tab)) listed.set(tab, new Map());
  const known = listed.get(tab);
  if (!known.has(k)) {
    const view = new DataView(bytesOf(tab.swaps).buffer), found = [];
    let start = 4 * tab.kept * tab.starts.length + tab.starts[k];
    for (let s = 0; s < tab.kept; s++) {
      const at = 4 * (k * tab.kept + s), first = view.getUint16(at, true), second = view.getUint16(at + 2, true);
      if (first === 65535) break;
      const order = exchanged(tab, first, second), moved = order.map((c, p) => p).filter((p) => order[p] !== p);
      found.push({ first, second, start, moved });
      start += moved.length;
    }
    known.set(k, found);
  }
  return known.get(k);
}

function attentionOf(k) {
  const tab = shownPrompt(), codes = bytesOf(tab.attention);
  return Array.from({ length: tab.n }, (_, p) => share(codes[k * tab.n + p]));
}

/** All positions whose content did not move keep their attention, up to one factor. */
function attentionAfter(k, swap) {
  const sharp = shownPrompt().sharp[k];
  if (sharp && swap === swapsOf(k)[0]) return Array.from(bytesOf(sharp), share);
  const before = attentionOf(k), codes = bytesOf(shownPrompt().swaps), moved = swap.moved.map((_, c) => share(codes[swap.start + c]));
  const sum = (values) => values.reduce((total, x) => total + x, 0), away = new Set(swap.moved);
  // What did not move, and a sink that is no token: summed, since one less what moved would lose its digits.
  const left = sum(before.filter((_, p) => !away.has(p))) + shownPrompt().sink[k], factor = left > 0 ? Math.max(0, 1 - sum(moved)) / left : 0;
  const after = before.map((x) => Math.min(1, x * factor));
  swap.moved.forEach((p, c) => { after[p] = moved[c]; });
  return after;
}

/** Where among the swaps of a head the one stands that was carried out in the prompt, too; -1 for nowhere. */
function permutedSwap(k) {
  const { permuted } = shownPrompt(), at = permuted ? permuted.swap[k] : -1;
  return at < swapsOf(k).length ? at : -1;
}

/** The swap that is shown at first: the heaviest, or one that was carried out in the prompt as well and weighs half as much. */
function usualSwap(k) {
  const before = attentionOf(k), mean = (block) => { const [a, b] = spans(shownPrompt())[block]; return before.slice(a, b).reduce((sum, x) => sum + x, 0) / (b - a); };
  const all = swapsOf(k), gap = (one) => Math.abs(mean(one.first) - mean(one.second)), both = permutedSwap(k);
  return both >= 0 && gap(all[both]) >= gap(all[0]) / 2 ? both : 0;
}
function swapIndex(k) { return Math.min(state.swap === null ? usualSwap(k) : state.swap, swapsOf(k).length - 1); }
function swapNow(k) { return swapsOf(k)[swapIndex(k)]; }

/** Attention after the swap that is shown was carried out in the prompt; null where it was not. */
function attentionPermuted(k) {
  if (swapIndex(k) !== permutedSwap(k)) return null;
  const tab = shownPrompt(), codes = bytesOf(tab.permuted.attention);
  return Array.from({ length: tab.n }, (_, p) => share(codes[k * tab.n + p]));
}

const blockText = (tab, block) => { const [a, b] = spans(tab)[block], text = tab.token.slice(a, b).join("").trim().replace(/\s+/g, " "); return text.length > 34 ? text.slice(0, 33) + "…" : text; };

/** One side: tokens in order, what is swapped in boxes; long stretches that nobody looks at are left out. */
function tokenText(tab, order, weights, top, marked, label) {
  const root = el("div", { class: "tokens", role: "group", "aria-label": label, tabindex: "0" });
  const spansNow = order ? slots(tab, marked) : spans(tab), blockAt = new Map();
  spansNow.forEach(([a, b], block) => { for (let p = a; p < b; p++) blockAt.set(p, block); });
  const dull = (p) => weights && (weights[p] || 0) < 0.0005 && !marked.includes(blockAt.get(p)) && p !== tab.query;
  let box = null, inBlock = -1;
  for (let p = 0; p < tab.token.length; p++) {
    let end = p;
    while (end < tab.token.length && tab.token.length > 600 && dull(end)) end++;
    if (end - p > 40) { root.append(el("span", { class: "skipped" }, " … " + (end - p) + " tokens without attention … ")); p = end - 1; box = null; inBlock = -1; continue; }
    const block = blockAt.has(p) ? blockAt.get(p) : -1, text = tab.token[order ? order[p] : p];
    if (block !== inBlock) {
      box = block < 0 ? null : el("span", { class: "block" + (tab.short[block] ? " short" : "") + (marked.includes(block) ? " swapped" : ""), "data-block": block, title: heads().noun + " " + block, onclick: () => pickBlock(block) });
      if (box) root.append(box);
      inBlock = block;
    }
    const value = weights ? weights[p] || 0 : null;
    const token = el("span", { class: "token" + (p === tab.query ? " query" : ""), "data-position": p, title: "position " + p + (block >= 0 ? ", " + heads().noun + " " + block : "") + (value === null ? "" : ", attention " + percent(value)) + (p === tab.query ? ", the query" : "") }, text.replaceAll("\n", "↵\n"));
    if (value !== null) token.style.backgroundColor = "color-mix(in srgb, var(--heat) " + Math.round(100 * Math.sqrt(Math.min(1, value / top))) + "%, transparent)";
    (box || root).append(token);
  }
  return root;
}

/** Where blocks stand after the exchange: those between two of unequal length shift. */
function slots(tab, [first, second]) {
  const all = spans(tab), [a, b] = all[first], [c, d] = all[second], by = d - c - (b - a);
  return all.map(([from, to], block) => block === first ? [d - (b - a), d] : block === second ? [a, a + d - c] : block > first && block < second ? [from + by, to + by] : [from, to]);
}

/** What the two blocks got before, and where that went, in words. */
function toldSwap(k, swap) {
  const tab = shownPrompt(), noun = heads().noun, before = attentionOf(k), inPrompt = attentionPermuted(k);
  const sum = (values, [a, b]) => values.slice(a, b).reduce((total, x) => total + x, 0), mean = (block) => sum(before, spans(tab)[block]) / (spans(tab)[block][1] - spans(tab)[block][0]);
  const [seen, unseen] = mean(swap.first) >= mean(swap.second) ? [swap.first, swap.second] : [swap.second, swap.first];
  const had = sum(before, spans(tab)[seen]), now = slots(tab, [swap.first, swap.second]);
  const outcome = (after, id) => {
    const follows = sum(after, now[seen]), stays = sum(after, now[unseen]);
    const verdict = had < heads().least_mass ? "too little at stake to tell" : follows + stays < had / 2 ? "it lets go of both" : follows >= 2 * stays ? "it follows the " + noun : stays >= 2 * follows ? "it stays put" : "neither clearly";
    return [" it gets " + percent(follows) + " in its new place, and its old place gets " + percent(stays) + ": ", el("b", { id }, verdict), "."];
  };
  return [
    "“" + blockText(tab, seen) + "” gets " + percent(had) + " of the attention. After a swap with “" + blockText(tab, unseen) + "” at layer " + heads().layer[k], outcome(attentionAfter(k, swap), "told-verdict"),
    inPrompt ? [" After the same swap in the prompt", outcome(inPrompt, "told-permuted")] : null, " One swap of one prompt; the scores weigh all.",
  ];
}

let picked = null;
/** Two blocks chosen one after the other: that swap is shown, if it is here. */
function pickBlock(block) {
  const k = headIndex(state.head);
  if (k < 0 || picked === null || picked === block) { picked = picked === block ? null : block; markPicked(); return; }
  const [first, second] = [Math.min(picked, block), Math.max(picked, block)], at = swapsOf(k).findIndex((one) => one.first === first && one.second === second);
  picked = null;
  if (at >= 0) { state.swap = at; drawPrompt(); drawSide(); redrawSide(); return; }
  markPicked();
  document.getElementById("told").replaceChildren("The swap of " + heads().noun + "s " + first + " and " + second + " is not among the " + swapsOf(k).length + " heaviest of this head, out of " + shownPrompt().all_swaps + ", that " + (swapsOf(k).length < shownPrompt().most_kept ? "this page has room for; rotoscope serve shows " + shownPrompt().most_kept + "." : "the run has kept."));
}
function markPicked() { document.querySelectorAll("#prompt .block").forEach((one) => one.classList.toggle("picked", Number(one.dataset.block) === picked)); }

function drawPrompt() {
  const place = document.getElementById("prompt"), all = heads() && heads().shown;
  if (!place || !all) return;
  const tab = shownPrompt(), k = headIndex(state.head), known = tab && tab.attention, noun = heads().noun;
  const hint = (text) => el("p", { class: "hint", id: "told", role: "status" }, text);
  if (!tab) { place.replaceChildren(el("h2", {}, "The prompt"), hint("Not shown: " + all.why + ".")); return; }
  const title = (rest) => el("div", { class: "prompt-head" }, el("h2", {}, "What head " + (state.head || "…") + " looks at"), rest, enlarge(place));
  if (!known || k < 0) {
    place.replaceChildren(el("div", { class: "prompt-head" }, el("h2", {}, "The prompt"), el("span", { class: "hint" }, "the first of the run; boxes: what changes places (" + noun + "s)" + (tab.asked.length ? ", in colour: where the answer stands" : "") + "; ▸ where the model is asked"), enlarge(place)),
      hint(known ? "Choose a head, and see where it looks before and after a swap." : "Attention is not shown: " + tab.why + "."),
      tokenText(tab, null, null, 1, tab.asked, "The prompt"));
    return;
  }
  const swap = swapNow(k), before = attentionOf(k), after = attentionAfter(k, swap), inPrompt = attentionPermuted(k), top = [...before, ...after, ...(inPrompt || [])].reduce((most, x) => Math.max(most, x), 1e-6), marked = [swap.first, swap.second];
  const named = (block) => { const text = blockText(tab, block); return block + (text.length && text.length <= 16 && text !== String(block) ? " “" + text + "”" : ""); };
  const name = (one) => named(one.first) + " and " + named(one.second);
  const choice = el("select", { "aria-label": "Which swap", id: "swap", onchange: (event) => { state.swap = Number(event.target.value); drawPrompt(); drawSide(); redrawSide(); } }, swapsOf(k).map((one, s) => el("option", { value: s, selected: s === swapIndex(k) }, name(one))));
  const side = (label, text, meaning) => el("div", { class: "side-text" }, el("h3", {}, term(label, meaning)), text);
  const order = exchanged(tab, swap.first, swap.second), other = inPrompt ? -1 : permutedSwap(k);
  const elsewhere = other < 0 ? null : el("button", { type: "button", id: "show-permuted", onclick: () => { state.swap = other; drawPrompt(); drawSide(); redrawSide(); } }, "show a swap that was also run in the prompt");
  place.replaceChildren(title([el("label", {}, "swap, heaviest first ", choice), elsewhere, el("span", { class: "hint" }, el("span", { class: "click" }, "or click two boxes; "), "darkest: " + percent(top))]), hint(toldSwap(k, swap)),
    el("div", { class: "prompt-texts" + (inPrompt ? " three" : "") }, side("before", tokenText(tab, null, before, top, marked, "Attention before the swap")),
      side("swapped at layer " + heads().layer[k], tokenText(tab, order, after, top, marked, "Attention after the swap"), "what this head attends over changes places, as in the papers: states of earlier layers stay as they were"),
      inPrompt ? side("swapped in the prompt", tokenText(tab, order, inPrompt, top, marked, "Attention after the swap in the prompt"), MEANINGS["prompt permuted"]) : null));
  picked = null;
}
