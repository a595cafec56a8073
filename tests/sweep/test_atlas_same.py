"""What an atlas takes for the same: profiles, models in several precisions, and the folders in which it looks for runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rotoscope as rs
from rotoscope.report.found import find_runs
from rotoscope.results.atlas_models import count_models
from rotoscope.results.atlas_rows import settings_key
from tests.models import tiny, tokens
from tests.sweep.test_atlas import profiled

NOBODY = 65_534


def in_precision(dtype: str, seed: int = 0, name: str = "tiny-0", out: Path | None = None) -> rs.Profile:
    subject = rs.load(tiny("llama", seed=seed, num_hidden_layers=2), name=name, dtype=dtype)
    return rs.profile(subject, tokens=tokens(3, 10), null="none", examples=False, show_progress=False, out=out)


@pytest.fixture(scope="module")
def precisions(tmp_path_factory: pytest.TempPathFactory) -> rs.atlas.Atlas:
    """Two models, the first in two precisions."""
    place = tmp_path_factory.mktemp("precisions")
    in_precision("float32", out=place / "single")
    in_precision("bfloat16", out=place / "half")
    in_precision("float32", seed=1, name="tiny-1", out=place / "other")
    return rs.atlas.make(place, show_progress=False)


def test_profiles_that_differ_in_the_least_mass_are_not_the_same(tmp_path: Path) -> None:
    usual, strict = profiled(0, tmp_path / "usual"), profiled(0, tmp_path / "strict", least_mass=0.9)
    found = rs.atlas.make(tmp_path, show_progress=False)
    assert (len(found.profiles), found.left_out) == (2, [])
    little = found.heads.groupby("profile")["little_at_stake"].sum()
    assert little.nunique() == 2
    said = rs.atlas.make(tmp_path / "usual", show_progress=False).place(profiled(1, least_mass=0.9))
    assert "least_mass is 0.9 here and 0.05 there" in said.words[0]
    assert said.models == 0
    assert settings_key(usual.run) != settings_key(strict.run)


def test_runs_that_do_not_say_the_least_mass_are_those_with_the_usual_one() -> None:
    run = profiled(0).run
    before = settings_key(run)
    del run.settings["least_mass"], run.settings["input_swaps"]
    assert settings_key(run) == before


def test_a_model_in_two_precisions_counts_once(precisions: rs.atlas.Atlas, tmp_path: Path) -> None:
    assert precisions.profiles["fingerprint"].nunique() == 3
    assert count_models(precisions.profiles) == 2
    assert "2 models, 3 profiles" in repr(precisions)
    assert "Every head of 2 models in 3 profiles" in (precisions.save(tmp_path / "a") / "README.md").read_text()
    found = precisions.place(profiled(9))
    assert found.models == 2
    assert sorted(found.others.drop_duplicates("fingerprint")["model"]) == ["tiny-0", "tiny-1"]
    halves = precisions.profiles.set_index("dtype")["fingerprint"]
    assert halves["bfloat16"] not in set(
        found.others["fingerprint"]
    )  # the others are in single precision, as it is
    half = precisions.place(in_precision("bfloat16", seed=9, name="tiny-9"))
    assert halves["bfloat16"] in set(half.others["fingerprint"])
    assert half.models == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_model_is_not_compared_with_itself_in_another_precision(
    precisions: rs.atlas.Atlas, dtype: str
) -> None:
    found = precisions.place(in_precision(dtype))
    assert set(found.others["model"]) == {"tiny-1"}
    others = sorted({"float32", "bfloat16"} - {dtype})
    said = f"A model of its name and shape is there in {' and '.join(sorted(others))}: it is taken for the same one"
    assert said in " ".join(found.words)
    alone = {name: t[t["profile"].isin(_of(precisions, "tiny-0"))] for name, t in precisions.tables.items()}
    found = rs.atlas.Atlas(alone).place(in_precision(dtype))
    assert found.models == 0
    assert "is this one: nothing is compared" in found.words[0]
    assert said in found.words[1]


def _of(atlas: rs.atlas.Atlas, model: str) -> list[str]:
    return atlas.profiles.loc[atlas.profiles["model"] == model, "profile"].tolist()


@pytest.mark.parametrize("other", [{"seed": 1}, {"seed": 1, "num_hidden_layers": 3}])
def test_a_model_of_the_same_name_but_other_weights_is_another_one(
    precisions: rs.atlas.Atlas, other: dict[str, Any]
) -> None:
    """In the same precision another fingerprint is another model, and so is another shape in any."""
    dtype = "float16" if "num_hidden_layers" in other else "float32"
    subject = rs.load(tiny("llama", **{"num_hidden_layers": 2, **other}), name="tiny-0", dtype=dtype)
    mine = rs.profile(subject, tokens=tokens(3, 10), null="none", examples=False, show_progress=False)
    one = {name: t[t["profile"].isin(_single(precisions))] for name, t in precisions.tables.items()}
    found = rs.atlas.Atlas(one).place(mine)
    assert set(found.others["model"]) == {"tiny-0"}
    assert "taken for the same" not in " ".join(found.words)


def _single(atlas: rs.atlas.Atlas) -> list[str]:
    rows = atlas.profiles[(atlas.profiles["model"] == "tiny-0") & (atlas.profiles["dtype"] == "float32")]
    return rows["profile"].tolist()


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Root may read everything: whoever tests as root is nobody for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody may look into, as pytest's are not."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    for one in place.rglob("*"):
        one.chmod(0o755)
    shutil.rmtree(place)


def test_what_cannot_be_read_is_left_out_and_named(folder: Path) -> None:
    profiled(0, folder / "good")
    for name in ("closed", "unreadable", "odd"):
        shutil.copytree(folder / "good", folder / name)
    (folder / "odd" / "run.json").unlink()
    (folder / "odd" / "run.json").mkdir()
    assert len(rs.atlas.make(folder, show_progress=False).profiles) == 1  # and what it imports is there
    (folder / "unreadable" / "run.json").chmod(0)
    (folder / "closed").chmod(0)
    with as_somebody_else():
        found = rs.atlas.make(folder, show_progress=False)
        listed = {run.path: run.state for run in find_runs(folder)[0]}
    assert found.profiles["model"].tolist() == ["tiny-0"]
    assert [said.split(" is left out: ")[0] for said in found.left_out] == [
        str(folder / name) for name in ("closed", "odd", "unreadable")
    ]
    assert "cannot be looked into (Permission denied)" in found.left_out[0]
    assert "it is no plain file" in found.left_out[1]
    assert "Permission denied" in found.left_out[2]
    assert found.about["left_out"] == {"damaged, or of another version": 3}
    assert listed == {"good": "finished", "odd": "damaged", "unreadable": "damaged"}


def test_an_atlas_is_made_of_the_runs_that_the_list_shows(tmp_path: Path) -> None:
    first = tmp_path / "checkpoint-500"
    profiled(0, first)
    for name in ("checkpoints/a", "checkpoint-study", "plain", ".hidden", "pieces/part", "checkpoint-7/inner"):
        shutil.copytree(first, tmp_path / name)
    found = rs.atlas.make(tmp_path, show_progress=False)
    assert len(found.profiles) == 1
    told = {said.split(" is left out")[0] for said in found.left_out}
    kept = {said.split(": ")[1].split(" has the same")[0] for said in found.left_out}
    there = {str(tmp_path / run.path) for run in find_runs(tmp_path)[0]}
    assert told | kept == there
    assert {Path(one).name for one in there} >= {"checkpoint-500", "checkpoint-study", "plain", "a"}
    assert not any("inner" in one or "hidden" in one or "pieces" in one for one in there)
