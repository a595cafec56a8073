const form = document.getElementById('compare');
const body = document.getElementById('rows');
const note = document.getElementById('note');
let version = body.dataset.version;
const boxes = () => [...form.querySelectorAll('input[type=checkbox]')];
function mind() {
  const ticked = boxes().filter(box => box.checked);
  boxes().forEach(box => { box.disabled = ticked.length >= 2 && !box.checked; box.removeAttribute('name'); });
  ticked.slice(0, 2).forEach((box, k) => { box.name = 'ab'[k]; });
  document.getElementById('go').disabled = ticked.length !== 2;
}
async function refresh() {
  try {
    const answer = await fetch('/runs');
    if (!answer.ok) throw new Error(answer.status);
    const fresh = await answer.json();
    note.textContent = fresh.note;
    if (fresh.version === version) return;
    const kept = new Set(boxes().filter(box => box.checked).map(box => box.value));
    body.innerHTML = fresh.rows;
    boxes().forEach(box => { box.checked = kept.has(box.value); });
    version = fresh.version;
    mind();
  } catch {
    note.textContent = 'The server does not answer; what is shown may be out of date.';
  }
}
const address = new URL(location.href);
if (address.searchParams.has('token')) {
  address.searchParams.delete('token');
  history.replaceState(null, '', address);
}
form.addEventListener('change', mind);
window.addEventListener('pageshow', mind);
setInterval(() => { if (!document.hidden) refresh(); }, REFRESH_MS);
