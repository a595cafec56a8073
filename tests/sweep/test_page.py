"""The page of a sweep: the items as they are now, and the classes of their heads, before its end and after it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rotoscope.experiments.page_data import MOST_ROWS
from rotoscope.report.page import run_payload
from rotoscope.runs.files import CHECKSUM
from rotoscope.runs.record import described_checksum
from rotoscope.sweeps import page as sweeps
from rotoscope.sweeps import run_item as one_item
from rotoscope.sweeps.page import classes_by_item
from tests.sweep import light as stand_in
from tests.sweep.conftest import Light

CLASSES = "Classes of heads by item"


def tables(payload: dict[str, Any]) -> dict[str, pd.DataFrame]:
    shown = payload["tabs"].get("tables", {"tables": []})["tables"]
    return {one["title"]: pd.DataFrame(dict(zip(one["names"], one["columns"], strict=True))) for one in shown}


def heads(item: str, classes: list[str | None], **more: Any) -> pd.DataFrame:
    scores = {"positional": (1.0, 0.0), "symbolic": (0.0, 1.0), None: (None, None)}
    both = pd.DataFrame([scores.get(name, (0.5, 0.5)) for name in classes], dtype=float)
    both.columns = ["positional_score", "symbolic_score"]
    return both.assign(item=item, head_class=classes, **more)


@pytest.fixture
def light(light: Light, monkeypatch: pytest.MonkeyPatch) -> Light:
    """Sweeps of runs whose heads have classes."""
    original = stand_in.piece

    def piece(given: dict[str, Any], k: int) -> pd.DataFrame:
        found = original(given, k)
        classes = ["positional" if score > 0.5 else "symbolic" for score in found["positional_score"]]
        return found.assign(symbolic_score=1 - found["positional_score"], head_class=classes)

    monkeypatch.setattr(stand_in, "piece", piece)
    return light


def test_a_sweep_in_its_first_run_shows_its_items(light: Light, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, original = [], one_item.run_item

    def looked(line: Any, folder: Path) -> Any:
        seen.append(run_payload("swept"))
        return original(line, folder)

    monkeypatch.setattr(one_item, "run_item", looked)
    Path("bad").touch()
    light({"model": ["a", "bad", "b"], "seed": [0]})
    assert [one["complete"] for one in seen] == [False] * 3
    states = [tables(one)["The items"]["state"].tolist() for one in seen]
    assert states == [
        ["waiting", "waiting", "waiting"],
        ["finished", "waiting", "waiting"],
        ["finished", "failed", "waiting"],
    ]
    assert CLASSES not in tables(seen[0])
    assert tables(seen[2])[CLASSES]["model"].tolist() == ["a"]
    assert any("failed: this model is bad" in said for said in seen[2]["warnings"])
    assert not [problem for one in seen for problem in one["problems"]]
    after = run_payload("swept")
    assert after["complete"]
    assert tables(after)[CLASSES]["model"].tolist() == ["a", "b"]
    pd.testing.assert_frame_equal(tables(after)[CLASSES].iloc[:1], tables(seen[2])[CLASSES])


def test_a_sweep_that_was_given_more_items_shows_those_too(light: Light) -> None:
    light({"model": ["a"], "seed": [0, 1]})
    light({"model": ["a"], "seed": [0, 1, 2, 3]}, shard="1/2")
    shown = tables(run_payload("swept"))
    assert sorted(shown["The items"]["seed"]) == [0, 1, 2, 3]
    assert shown["Items by state"].set_index("state")["items"].to_dict() == {"finished": 3, "waiting": 1}
    assert len(shown[CLASSES]) == 3


def test_an_item_that_has_ended_is_read_once_and_again_when_it_was_run_again(light: Light) -> None:
    light(shard="1/2")
    sweeps._looked.cache_clear()
    for _ in range(3):
        run_payload("swept")
    assert sweeps._looked.cache_info().misses == 2
    note = next(Path("swept").glob("*/item.json"))
    note.write_text(json.dumps(json.loads(note.read_text()) | {"state": "failed", "error": "it broke"}))
    assert sorted(tables(run_payload("swept"))["The items"]["state"]) == [
        "failed",
        "finished",
        "waiting",
        "waiting",
    ]


def test_shares_and_medians_by_item() -> None:
    some = ["positional", "symbolic", "symbolic", "mixed", None]
    found = classes_by_item(pd.concat([heads("x", some), heads("y", ["uniform", "uniform"])]))
    assert found["item"].tolist() == ["x", "y"]
    assert found["heads"].tolist() == [4, 2]
    x, y = (row._asdict() for row in found.itertuples())
    assert [x[name] for name in ("positional", "symbolic", "uniform", "mixed")] == [0.25, 0.5, 0, 0.25]
    assert (y["uniform"], y["mixed"]) == (1, 0)
    assert (x["median_positional_score"], x["median_symbolic_score"]) == (0.25, 0.75)


def test_nobody_is_said_to_have_no_carried_heads_where_prompts_were_not_permuted() -> None:
    permuted = heads("x", ["carried", "symbolic"], input_class=["positional", "symbolic"])
    found = classes_by_item(pd.concat([permuted, heads("y", ["symbolic", "symbolic"])])).set_index("item")
    assert found["carried"]["x"] == 0.5
    assert pd.isna(found["carried"]["y"])
    assert classes_by_item(heads("y", ["mixed"]))["carried"].isna().all()


def test_every_tau_and_kind_of_queries_has_classes_of_its_own() -> None:
    both = [heads("x", [name], tau=tau, queries="last") for name, tau in (("positional", 1e-4), ("mixed", 1.0))]
    found = classes_by_item(pd.concat(both))
    assert found[["tau", "positional"]].to_numpy().tolist() == [[1e-4, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("missing", ["head_class", "symbolic_score"])
def test_heads_without_classes_make_no_table(missing: str) -> None:
    assert classes_by_item(heads("x", ["mixed"]).drop(columns=missing)).empty


def test_no_item_is_left_out_however_many_there_are(light: Light) -> None:
    """Nor are the first heads shown for all: a page that ended after so many rows had two items of a language model."""
    light({"model": ["a"], "seed": [0]})
    many = [f"item-{k}" for k in range(MOST_ROWS + 5)]
    pd.concat([heads(name, ["mixed", "symbolic"]) for name in many]).to_parquet("swept/heads.parquet")
    items = pd.DataFrame(
        {"item": many, "model": "a", "seed": 0, "state": "finished", "seconds": 1.0, "error": ""}
    )
    items.to_parquet("swept/items.parquet")
    changed(files={})
    shown = tables(run_payload("swept"))
    assert len(shown["The items"]) == len(shown[CLASSES]) == MOST_ROWS + 5


def changed(**changes: Any) -> None:
    file = Path("swept/run.json")
    about = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(about | {CHECKSUM: described_checksum(about)}))


def test_what_lies_elsewhere_is_not_read(light: Light, tmp_path: Path) -> None:
    """A sweep of a stranger may name anything as its item, or link to it."""
    light(shard="1/2")
    inside = sorted(folder.name for folder in Path("swept").iterdir() if (folder / "item.json").exists())
    shutil.copytree(Path("swept") / inside[0], "secret")
    for name in inside:
        shutil.rmtree(Path("swept") / name)
    Path("swept", inside[0]).symlink_to(tmp_path / "secret")
    shutil.copytree("secret", Path("swept") / inside[1])
    Path("swept", inside[1], "run.json").unlink()
    Path("swept", inside[1], "run.json").symlink_to(tmp_path / "secret" / "run.json")
    about = json.loads(Path("swept/run.json").read_text())
    place = next(iter(about["settings"]["items"].values()))
    more = dict.fromkeys(("../secret", "..", "", str(tmp_path / "secret")), place)
    changed(settings=about["settings"] | {"items": about["settings"]["items"] | more})
    shown = tables(run_payload("swept"))
    assert set(shown["The items"]["state"]) == {"waiting"}
    assert CLASSES not in shown
