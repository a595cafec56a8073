// The list of runs: two are ticked, in an order that counts, and compared; in the server the rows refresh themselves.

const form = document.getElementById("compare"), body = document.getElementById("rows"), note = document.getElementById("note");
const go = document.getElementById("go"), REFRESH_MS = 3000;
let version = body.dataset.version;
let ticked = [];
const boxes = () => [...form.querySelectorAll("input[type=checkbox]")];

/** The first ticked is A, the second B. */
function mind() {
  const now = boxes().filter((box) => box.checked).map((box) => box.value);
  ticked = [...ticked.filter((value) => now.includes(value)), ...now.filter((value) => !ticked.includes(value))].slice(0, 2);
  for (const box of boxes()) {
    const place = ticked.indexOf(box.value);
    box.checked = place >= 0;
    box.disabled = ticked.length >= 2 && place < 0;
    if (place >= 0) box.name = "ab"[place]; else box.removeAttribute("name");
    box.nextElementSibling.textContent = place >= 0 ? "AB"[place] : "";
  }
  go.disabled = ticked.length !== 2;
  go.textContent = ticked.length === 2 ? "Compare A with B" : ticked.length ? "Tick one more to compare" : "Tick two to compare";
}

async function refresh() {
  try {
    const answer = await fetch("/runs");
    if (!answer.ok) throw new Error(answer.status);
    const fresh = await answer.json();
    note.textContent = fresh.note;
    if (fresh.version === version) return;
    body.innerHTML = fresh.rows;
    boxes().forEach((box) => { box.checked = ticked.includes(box.value); });
    document.getElementById("nothing").hidden = fresh.rows !== "";
    version = fresh.version;
    mind();
  } catch {
    note.textContent = "The server does not answer; what is shown may be out of date.";
  }
}

const address = new URL(location.href);
if (address.searchParams.has("token")) {
  address.searchParams.delete("token");
  history.replaceState(null, "", address);
}
const dark = window.matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
document.getElementById("theme").addEventListener("click", () => {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
  root.dataset.theme = isDark ? "light" : "dark";
});
form.addEventListener("change", mind);
window.addEventListener("pageshow", mind);
if ("live" in form.dataset) setInterval(() => { if (!document.hidden) refresh(); }, REFRESH_MS);
