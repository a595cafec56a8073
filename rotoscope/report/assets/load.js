// Two runs of a site, named in the address as ?a=001&b=002: their data are loaded, then the page that compares them.

(function () {
  "use strict";
  const asked = new URLSearchParams(location.search), pair = [asked.get("a"), asked.get("b")];
  const place = document.getElementById("content"), content = JSON.parse(place.textContent);
  const load = (file) => new Promise((done, fail) => {
    const script = document.createElement("script");
    script.addEventListener("load", done);
    script.addEventListener("error", () => fail(new Error(file)));
    script.src = file;
    document.body.append(script);
  });
  const refuse = (sentence) => { document.querySelector(".waiting").textContent = sentence; };
  /** The comparison of B with A from that of A with B. */
  const swapped = (one) => ({ ...one, first: one.second, second: one.first });
  const turnedPlan = (plan) => ({ ...plan, said: swapped(plan.said), panels: plan.panels.map(swapped), tables: plan.tables.map(swapped) });
  const turned = (found) => ({ ...found, settings: found.settings.map(([name, a, b]) => [name, b, a]), at: found.at.map(swapped), plan: found.plan && turnedPlan(found.plan) });

  async function start() {
    const [a, b] = pair, known = pair.every((one) => content.compared.includes(one)), sorted = [...pair].sort();
    for (const one of pair) await load("data/" + one + ".js");
    const data = window.rotoscopeData;
    let found = { settings: [], at: [], words: ["These two were not compared when the site was made. To compare them: rotoscope report A B --out both.html"] };
    if (known) {
      await load("data/" + sorted.join("-") + ".js");
      found = data[sorted.join("-")];
      if (a !== sorted[0]) found = turned(found);
    }
    data[b] = { ...data[b], comparison: found };
    place.textContent = JSON.stringify({ ...content, runs: pair });
    await load("assets/plotly.js");
    await load("assets/page.js");
  }

  if (pair.some((one) => !/^\d+$/.test(one || "")) || pair[0] === pair[1]) refuse("Two runs are compared: tick two in the list.");
  else start().catch(() => refuse("One of the two runs is not in this site."));
})();
