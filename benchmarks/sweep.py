"""What a sweep takes beyond its items: 24 items of about 10 s each, in one process, which is never idle if nothing is lost.

python3 -m benchmarks.sweep

An item's seconds are those its command takes in its process. What is left is the sweep's own: reading the libraries once,
looking at every item before the first starts, handing out, and the tables at the end.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.measure import Report
from rotoscope.sweeps.driver import run_sweep

ITEMS, PROMPTS, BAR = 24, 7, 0.05
FILE = """\
command = "profile"
out = "swept"
[grid]
seed = [{seeds}]
[settings]
model = "{model}"
task = "repeats"
length = 96
prompts = {prompts}
null = "none"
figures = false
device = "cpu"
"""


def main(model: str = "smollm2", items: int = ITEMS, prompts: int = PROMPTS, workers: int = 1) -> float:
    """The share of the time that is added."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "sweep.toml"
        seeds = ", ".join(map(str, range(items)))
        file.write_text(FILE.format(seeds=seeds, model=model, prompts=prompts))
        began = time.perf_counter()
        found = run_sweep(file, workers=workers, out=Path(place) / "swept", show_progress=False)
        whole = time.perf_counter() - began
    spent = float(found.items["seconds"].sum())
    share = whole * workers / spent - 1
    title = f"a sweep of {items} profiles of {model}, {workers} process{'es' if workers > 1 else ''}"
    report = Report(title, "items", "an item", "the sweep", "adds")
    report.row(
        f"{spent:.1f} s",
        f"{spent / items:.1f} s",
        f"{whole:.1f} s",
        f"{share:.1%}",
        target=f"< {BAR:.0%}",
        met=share < BAR,
    )
    report.show()
    return share


if __name__ == "__main__":
    main()
