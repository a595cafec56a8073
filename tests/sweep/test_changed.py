"""A finished item is skipped only while the models, texts and runs that it names are what they were."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rotoscope.errors import RunError
from rotoscope.experiments.train.restrictions import Restrictions
from rotoscope.runs.run import Run
from rotoscope.sweeps import run_item as inputs
from rotoscope.sweeps.result import outcome_of
from tests.sweep.conftest import Light
from tests.tiny_models import tiny

Journal = Callable[[], list[str]]


def save_model(seed: int) -> Path:
    folder = Path("weights")
    tiny("llama", seed=seed).save_pretrained(folder)
    return folder


def write_text(words: str) -> Path:
    Path("mine.txt").write_text(words)
    return Path("mine.txt")


def save_run(tau: float) -> Path:
    made = Path("made") / str(tau)
    if not made.exists():
        Run(Restrictions, {"tau": tau}, made).finish()
    shutil.rmtree("earlier", ignore_errors=True)
    return Path(shutil.copytree(made, "earlier"))


CHANGES: dict[str, tuple[str, Callable[[], Path], Callable[[], Path]]] = {
    "the weights of a model": ("model", lambda: save_model(0), lambda: save_model(1)),
    "a run": ("model", lambda: save_run(0.1), lambda: save_run(0.2)),
    "a text": ("text", lambda: write_text("the cat"), lambda: write_text("the dog")),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_has_changed_on_disk_is_refused(case: str, light: Light, journal: Journal) -> None:
    setting, make, change = CHANGES[case]
    place = make()
    grid: dict[str, Any] = {setting: [str(place.absolute())], "seed": [0, 1]}
    grid |= {} if setting == "model" else {"model": ["a"]}
    light(grid)
    begun = journal()
    assert list(light(grid).items["state"]) == ["finished"] * 2
    assert journal() == begun  # nothing has changed, so nothing is run
    change()
    planned = light(grid, dry_run=True).items
    assert list(planned["state"]) == ["waiting"] * 2
    assert list(planned["error"]) == [f"{setting} has changed since it was made"] * 2
    with pytest.raises(
        RunError, match=rf"and 1 more was made of something else than is there now: {setting} has changed"
    ):
        light(grid)
    assert journal() == begun
    make()
    assert list(light(grid).items["state"]) == ["finished"] * 2
    assert journal() == begun


def test_only_changed_items_are_made_again_where_they_may_be_overwritten(
    light: Light, journal: Journal
) -> None:
    kept, changed = Path("kept"), save_model(0)
    tiny("llama", seed=2).save_pretrained(kept)
    grid = {"model": [str(kept.absolute()), str(changed.absolute())], "overwrite": [True]}
    light(grid)
    begun = len(journal())
    save_model(1)
    light(grid)
    again = journal()[begun:]
    assert len(again) == 2
    assert all(line.split()[1].startswith("weights-") for line in again)


def test_what_names_nothing_on_disk_has_no_checksum(tmp_path: Path) -> None:
    for value in ("~no-such-user/model", "x" * 5000, "", "32"):
        assert inputs.input_hashes(["profile", f"--model={value}"]).get("model", "") == ""
    file = tmp_path / "mine.py"
    file.write_text("def share(heads): ...")
    before = inputs.input_hashes(["profile", "letter", f"--measures={file}:share"])["measures"]
    file.write_text("def share(heads): return {}")
    assert inputs.input_hashes(["profile", "letter", f"--measures={file}:share"])["measures"] != before


def test_another_revision_in_the_cache_is_a_change(
    light: Light, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = {"org/model": "first"}
    monkeypatch.setattr(inputs, "cached_commit", lambda name: commits.get(name, ""))
    grid: dict[str, Any] = {"model": ["org/model"], "seed": [0]}
    light(grid)
    assert list(light(grid).items["state"]) == ["finished"]
    commits["org/model"] = "second"
    with pytest.raises(RunError, match="model has changed"):
        light(grid)


def test_a_model_that_an_item_fetches_is_not_taken_for_a_change(
    light: Light, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it was on this machine before."""
    commits = iter(["", "first", "first", "second"])
    monkeypatch.setattr(inputs, "cached_commit", lambda name: next(commits))
    grid: dict[str, Any] = {"model": ["org/model"], "seed": [0]}
    found = light(grid)
    assert outcome_of(Path("swept") / found.items["folder"][0]).inputs["model"] == "first"
    assert list(light(grid).items["state"]) == ["finished"]
    with pytest.raises(RunError, match="model has changed"):
        light(grid)
