"""The tab of one-head models: accuracy by frequency, and how it grew."""

from __future__ import annotations

from rotoscope.experiments.canonical.result import Canonical
from rotoscope.experiments.page_data import PageRun, Tab, clean, columns


def canonical_tab(page_run: PageRun) -> Tab:
    """Final accuracy by angle, and how it grew."""
    run = Canonical(page_run.run, page_run.tables)
    final = run.final()
    experiments = []
    for name in run.experiments:
        rows = final[final["experiment"] == name].sort_values("theta", ascending=False)
        grown = run.accuracy[run.accuracy["experiment"] == name]
        wide = grown.pivot_table(index="theta", columns="step", values="accuracy").sort_index(ascending=False)
        experiments.append(
            {
                "name": name,
                "theta": [clean(float(theta), 4) for theta in rows["theta"]],
                **columns(rows, ("mean", "std", "count")),
                "steps": [int(step) for step in wide.columns],
                "step_theta": [clean(float(theta), 4) for theta in wide.index],
                "by_step": clean(wide.to_numpy().tolist()),
            }
        )
    return {"experiments": experiments, "tables": page_run.summary_tables(run.summaries()[1:])}
