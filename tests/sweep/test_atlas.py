"""Many models as one data set: what is in it, what is not, what is refused, and where a model lies."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import rotoscope as rs
from rotoscope.errors import RotoscopeError, RunError
from rotoscope.results.atlas import sha256
from rotoscope.results.atlas_columns import NEEDED, SCHEMA, TABLES
from rotoscope.results.atlas_place import ABOVE, AMONG, BELOW, UNTOLD, where_it_lies
from rotoscope.results.atlas_rows import compared_by, model_name, settings_key, told
from rotoscope.results.files import CHECKSUM
from rotoscope.results.record import described_checksum
from tests.models import tiny, tokens

MODELS = 4


def profiled(seed: int, out: Path | None = None, **how: Any) -> rs.Profile:
    how = {"null": "none", "examples": False, "show_progress": False, **how}
    subject = rs.load(tiny("llama", seed=seed, num_hidden_layers=2), name=f"/home/somebody/models/tiny-{seed}")
    return rs.profile(subject, tokens=tokens(3, 10), out=out, **how)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for seed in range(MODELS):
        more = {"null": "random", "null_draws": 2, "known": True} if seed == 0 else {}
        profiled(seed, place / "deeper" / f"model-{seed}", **more)
    return place


@pytest.fixture(scope="module")
def atlas(runs: Path) -> rs.atlas.Atlas:
    return rs.atlas.make(runs, show_progress=False)


@pytest.fixture
def written(atlas: rs.atlas.Atlas, tmp_path: Path) -> Path:
    return atlas.save(tmp_path / "atlas")


def test_a_row_is_a_head_of_a_profile(runs: Path, atlas: rs.atlas.Atlas) -> None:
    assert len(atlas.profiles) == MODELS
    for seed in range(MODELS):
        profile = rs.open(runs / "deeper" / f"model-{seed}")
        rows = atlas.heads[atlas.heads["fingerprint"] == profile.run.settings["fingerprint"]]
        both = rows.merge(profile.heads, on=["layer", "head"], suffixes=("", "_there"))
        assert len(both) == len(profile.heads) == len(rows)
        for name in ("positional_score", "symbolic_score_low", "swapped_mass"):
            assert np.allclose(both[name], both[f"{name}_there"], atol=1e-6)
        assert (both["head_class"] == both["head_class_there"]).all()
        assert rows["relative_depth"].tolist() == [0.0] * 4 + [1.0] * 4
        own = profile.statistics().set_index("statistic")["value"]
        stats = atlas.statistics[atlas.statistics["profile"] == rows["profile"].iloc[0]].set_index("statistic")
        assert np.allclose(stats["value"][own.index], own, equal_nan=True)
        shares = stats["value"].filter(like="share ")
        assert shares.sum() == pytest.approx(1)


def test_nulls_and_known_heads_are_there_where_they_were_measured(atlas: rs.atlas.Atlas) -> None:
    beside = atlas.profiles.set_index("model")["null_draws"].to_dict()
    assert beside == {"tiny-0": 2, "tiny-1": 0, "tiny-2": 0, "tiny-3": 0}
    of_null = atlas.statistics.merge(atlas.profiles[["profile", "model"]], on="profile")
    known = of_null[of_null["statistic"] != "share mixed"].groupby("model")["verdict"].count()
    assert (known > 0).to_dict() == {"tiny-0": True, "tiny-1": False, "tiny-2": False, "tiny-3": False}
    scored = atlas.heads.groupby("model")["induction"].count()
    assert scored["tiny-0"] == 8
    assert scored["tiny-1"] == 0


def test_nothing_tells_whose_machine_it_was(runs: Path, written: Path) -> None:
    held = b"".join(file.read_bytes() for file in written.iterdir())
    texts = [pq.read_table(file).to_pandas().to_csv() for file in written.glob("*.parquet")]
    for secret in ("somebody", "home", str(runs), runs.name, os.uname().nodename):
        assert secret.encode() not in held
        assert not any(secret in text for text in texts), secret


def test_texts_and_paths_among_settings_are_not_written_out_but_tell_tasks_apart() -> None:
    run = profiled(0).run
    run.settings["task_settings"] = {
        "file": "/home/somebody/letter.txt",
        "text": "Dear Anna",
        "pairs": 4,
        "count": 9,
    }
    found = compared_by(run)
    assert told(found)["pairs"] == 4
    assert not {"file", "text", "count"} & set(told(found))
    before = settings_key(run)
    run.settings["task_settings"]["text"] = "Dear Emma"
    assert settings_key(run) != before


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("/home/me/models/x", "folder", "x"),
        ("C:\\me\\x", "folder", "x"),
        ("me/x", "memory", "x"),
        ("org/x", "hub", "org/x"),
    ],
)
def test_of_a_path_only_the_last_name_is_told(name: str, kind: str, expected: str) -> None:
    run = profiled(0).run
    assert run.subject is not None
    run.subject = replace(run.subject, name=name, source={"kind": kind})
    assert model_name(run) == expected


def test_it_comes_back_as_it_was(atlas: rs.atlas.Atlas, written: Path) -> None:
    again = rs.atlas.open(written)
    for name in TABLES:
        pd.testing.assert_frame_equal(again.tables[name], atlas.tables[name], check_dtype=False)
    about = json.loads((written / "atlas.json").read_text())
    assert about["schema"] == SCHEMA
    assert about["files"] == {file.name: sha256(file) for file in written.glob("*.parquet")}


def test_the_card_has_front_matter_and_explains_every_column(written: Path) -> None:
    yaml = pytest.importorskip("yaml")
    card = (written / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    about = yaml.safe_load(front)
    assert [one["config_name"] for one in about["configs"]] == list(TABLES)
    assert all((written / one["data_files"]).is_file() for one in about["configs"])
    for name in TABLES:
        for column in pq.read_schema(written / f"{name}.parquet").names:
            assert f"| {column} |" in text
    assert "1 with a random null" in text
    assert "3 with no null" in text


def test_a_name_cannot_break_the_card(atlas: rs.atlas.Atlas, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    wild = 'a: "b"\n---\n# <script>'
    card = (atlas.save(tmp_path / "wild", name=wild, license="cc0-1.0") / "README.md").read_text()
    about = yaml.safe_load(card.split("---\n", 2)[1])
    assert about["pretty_name"] == wild
    assert about["license"] == "cc0-1.0"
    assert "<script>" not in card.split("\n---\n", 1)[1]


@pytest.mark.parametrize("name", [*(f"{name}.parquet" for name in TABLES), "atlas.json"])
def test_damage_is_a_sentence(written: Path, name: str) -> None:
    file = written / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(RunError, match="is damaged .*again") as told_:
        rs.atlas.open(written)
    assert "\n" not in str(told_.value)
    file.unlink()
    with pytest.raises(RunError, match="cannot be read|is no atlas"):
        rs.atlas.open(written)


def rewritten(place: Path, **changes: Any) -> None:
    about = json.loads((place / "atlas.json").read_text()) | changes
    about[CHECKSUM] = described_checksum(about)
    (place / "atlas.json").write_text(json.dumps(about))


def test_a_newer_major_version_is_refused_and_a_newer_minor_one_read(written: Path) -> None:
    rewritten(written, schema="1.9", more="of it")
    assert len(rs.atlas.open(written).profiles) == MODELS
    rewritten(written, schema="2.0")
    with pytest.raises(RunError, match=r"newer rotoscope \(schema 2.0, this one reads 1.0\); upgrade"):
        rs.atlas.open(written)


def test_unknown_columns_are_ignored_and_kept_and_missing_ones_refused(
    atlas: rs.atlas.Atlas, tmp_path: Path
) -> None:
    tables = atlas.tables | {"heads": atlas.heads.assign(colour="blue")}
    more = rs.atlas.open(rs.atlas.Atlas(tables).save(tmp_path / "more"))
    assert set(more.heads["colour"]) == {"blue"}
    less = rs.atlas.Atlas(atlas.tables | {"heads": atlas.heads.drop(columns="head_class")})
    with pytest.raises(RunError, match="no column 'head_class'"):
        rs.atlas.open(less.save(tmp_path / "less"))
    assert all(set(NEEDED[name]) <= set(TABLES[name]) for name in TABLES)


def test_what_is_not_finished_or_damaged_stays_out(runs: Path, tmp_path: Path) -> None:
    for name in ("model-1", "model-2", "model-3"):
        shutil.copytree(runs / "deeper" / name, tmp_path / "all" / name)
    about = json.loads((tmp_path / "all/model-2/run.json").read_text())
    about["complete"] = False
    about[CHECKSUM] = described_checksum(about)
    (tmp_path / "all/model-2/run.json").write_text(json.dumps(about))
    (tmp_path / "all/model-3/prompts.parquet").write_bytes(b"PAR1")
    found = rs.atlas.make(tmp_path / "all", show_progress=False)
    assert found.profiles["model"].tolist() == ["tiny-1"]
    assert len(found.left_out) == 2
    assert "not finished" in found.left_out[0]
    assert "damaged" in found.left_out[1]
    card = (found.save(tmp_path / "atlas") / "README.md").read_text()
    assert "Left out: 1 damaged, or of another version; 1 not finished." in card
    with pytest.raises(RunError, match="no finished profile"):
        rs.atlas.make(tmp_path / "all" / "model-2", show_progress=False)


def test_a_run_of_a_newer_major_schema_stays_out(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "deeper", tmp_path / "all")
    about = json.loads((tmp_path / "all/model-2/run.json").read_text()) | {"schema": "9.0"}
    about[CHECKSUM] = described_checksum(about)
    (tmp_path / "all/model-2/run.json").write_text(json.dumps(about))
    found = rs.atlas.make(tmp_path / "all", show_progress=False)
    assert "tiny-2" not in set(found.profiles["model"])
    assert len(found.profiles) == MODELS - 1
    assert "newer rotoscope" in found.left_out[0]


def test_of_the_same_profile_twice_the_one_with_a_null_is_taken(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "deeper" / "model-0", tmp_path / "b-with")
    profiled(0, tmp_path / "a-without")
    profiled(0, tmp_path / "c-without", batch_tokens=64)
    found = rs.atlas.make(tmp_path, show_progress=False)
    assert found.profiles["null_draws"].tolist() == [2]
    assert len(found.left_out) == 2
    assert all("b-with has the same model, prompts and settings" in said for said in found.left_out)
    assert found.about["left_out"] == {"the same twice": 2}
    assert len(rs.atlas.make(tmp_path / "b-with", tmp_path / "b-with", show_progress=False).left_out) == 0


def test_every_tau_is_a_profile_of_its_own(tmp_path: Path) -> None:
    profiled(0, tmp_path / "both", tau=[1e-4, 1.0])
    found = rs.atlas.make(tmp_path, show_progress=False)
    assert sorted(found.profiles["tau"]) == [1e-4, 1.0]
    assert found.profiles["profile"].nunique() == 2
    assert len(found.heads) == 16


def test_atlases_are_joined(runs: Path, atlas: rs.atlas.Atlas, tmp_path: Path) -> None:
    parts = [runs / "deeper" / f"model-{seed}" for seed in range(MODELS)]
    first, second = (rs.atlas.make(*some, show_progress=False) for some in (parts[:3], parts[2:]))
    both = first.join(second)
    assert set(both.profiles["profile"]) == set(atlas.profiles["profile"])
    assert len(both.heads) == len(atlas.heads)
    assert both.left_out == ["tiny-2 on tokens (seed 0) is in both; the first is kept"]
    first.save(tmp_path / "first", license="cc0-1.0")
    second.save(tmp_path / "second", license="cc-by-4.0")
    from_folders = rs.atlas.write(tmp_path / "first", tmp_path / "second", out=tmp_path / "joined")
    assert set(from_folders.profiles["profile"]) == set(atlas.profiles["profile"])
    assert rs.atlas.open(tmp_path / "joined").about["license"] == "unknown"  # nobody can say for both
    with_runs = rs.atlas.make(parts[3], tmp_path / "first", show_progress=False)
    assert len(with_runs.profiles) == MODELS


def test_only_an_atlas_is_replaced_and_only_when_asked(
    atlas: rs.atlas.Atlas, written: Path, tmp_path: Path
) -> None:
    before = (written / "atlas.json").read_bytes()
    with pytest.raises(RotoscopeError, match="--overwrite"):
        atlas.save(written, name="another")
    assert (written / "atlas.json").read_bytes() == before
    atlas.save(written, name="another", overwrite=True)
    assert rs.atlas.open(written).about["name"] == "another"
    (written / "mine.txt").write_text("mine")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter").write_text("dear")
    for place in (written, mine):
        with pytest.raises(RunError, match="nothing is written there"):
            atlas.save(place, overwrite=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["atlas", "mine"]


def test_a_model_is_placed_among_the_others(atlas: rs.atlas.Atlas) -> None:
    mine = profiled(9)
    found = atlas.place(mine)
    assert found.models == MODELS
    assert "Compared with 4 models on the same task (tokens)" in found.words[0]
    assert "2 times in 5" in found.words[-1]
    by = found.table.set_index("statistic")
    values = atlas.statistics.pivot(index="profile", columns="statistic", values="value")
    own = mine.statistics().set_index("statistic")
    for name in ("correlation", "early positional", "share positional"):
        assert by["value"][name] == pytest.approx(own["value"][name], nan_ok=True)
        assert by["below"][name] == (values[name] < own["value"][name]).sum()
        assert by["median"][name] == pytest.approx(values[name].median())


def test_a_model_is_not_compared_with_itself(atlas: rs.atlas.Atlas) -> None:
    found = atlas.place(profiled(1))
    assert found.models == MODELS - 1
    assert "tiny-1" not in set(found.others["model"])
    assert "not compared with itself" in " ".join(found.words)
    alone = rs.atlas.Atlas(
        {name: table[table["profile"] == _of(atlas, 1)] for name, table in atlas.tables.items()}
    )
    found = alone.place(profiled(1))
    assert (found.models, "where" in found.table) == (0, False)
    assert "is this one: nothing is compared" in found.words[0]


def _of(atlas: rs.atlas.Atlas, seed: int) -> str:
    return str(atlas.profiles.set_index("model")["profile"][f"tiny-{seed}"])


def test_no_conclusion_where_the_task_or_the_settings_differ(atlas: rs.atlas.Atlas) -> None:
    elsewhere = profiled(9)
    elsewhere.run.settings["task"] = "binding"
    cases = {
        "no model on this task (binding)": elsewhere,
        "gamma is 0.2 here and 0.1 there": profiled(9, gamma=0.2),
        "tau is 1.0 here and 0.0001 there": profiled(9, tau=1.0),
        "they differ in what is not written out": rs.profile(
            tiny("llama", seed=9, num_hidden_layers=2), tokens=tokens(3, 11), null="none", examples=False
        ),
    }
    for sentence, profile in cases.items():
        found = atlas.place(profile)
        assert sentence in found.words[0]
        assert found.models == 0
        assert not {"where", "below", "median"} & set(found.table)
    with pytest.raises(RotoscopeError, match="only a profile can be placed"):
        atlas.place(rs.open(rs.__path__[0] + "/models/canonical"))


def test_several_profiles_of_a_model_count_once(atlas: rs.atlas.Atlas) -> None:
    twice = {name: table.copy() for name, table in atlas.tables.items()}
    for table in twice.values():
        table["profile"] = table["profile"] + "-again"
    shifted = twice["statistics"].assign(value=twice["statistics"]["value"] + 0.5)
    both = atlas.join(rs.atlas.Atlas(twice | {"statistics": shifted}))
    assert len(both.profiles) == 2 * MODELS
    once, again = (one.place(profiled(9)) for one in (atlas, both))
    assert again.models == MODELS
    assert np.allclose(again.others["value"], once.others["value"] + 0.25)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.8, 1.0, ABOVE),
        (0.6, 1.0, AMONG),
        (0.0, 0.15, BELOW),
        (0.0, 0.3, AMONG),
        (0.4, 0.6, AMONG),
        (np.nan, np.nan, UNTOLD),
    ],
)
def test_outside_is_only_what_is_outside_with_its_whole_interval(
    low: float, high: float, expected: str
) -> None:
    assert where_it_lies(low, high, np.array([0.2, 0.7])) == expected


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        rs.atlas.make(tmp_path / "nowhere")
    with pytest.raises(RotoscopeError, match="an atlas is made of something"):
        rs.atlas.make()
    with pytest.raises(RunError, match="it has no atlas.json"):
        rs.atlas.open(tmp_path)


def test_the_shipped_atlas() -> None:
    found = rs.atlas.open()
    assert found.profiles["fingerprint"].nunique() == 3
    assert {"number", "letter", "repeats", "lookup", "recall"} <= set(found.profiles["task"])
    assert (found.profiles["null_draws"] == 5).all()
    alike = found.profiles[found.profiles["task"] == "repeats"].groupby("settings_key")["fingerprint"].nunique()
    assert alike.max() == 3
    folder = Path(rs.__path__[0]) / "models" / "atlas"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 300_000
    told_ = (folder / "README.md").read_text()
    assert not re.search(r"/(home|root|tmp|work)/", told_)


def test_a_user_s_model_is_placed_in_the_shipped_atlas() -> None:
    found = rs.atlas.open()
    subject = rs.load("letter", device="cpu")
    mine = rs.profile(subject, rs.tasks.repeats(subject, count=2, prefix="none"), null="none", examples=False)
    beside = found.place(mine)
    assert set(beside.others["model"]) == {"SmolLM2-135M-Instruct", "number"}
    assert beside.table["models"].max() == 2
