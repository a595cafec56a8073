"""The columns of an atlas have their types whatever is in them, and an atlas of other types is refused in a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.results.atlas import sha256
from rotoscope.results.atlas_columns import TABLES
from rotoscope.results.atlas_types import typed
from tests.sweep.test_atlas import profiled, rewritten

SHIPPED = Path(rs.__path__[0]) / "models" / "atlas"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An atlas of one model without a null: no verdict, no interval of a null, no known heads."""
    place = tmp_path_factory.mktemp("bare")
    profiled(0, place / "run")
    return rs.atlas.write(place / "run", out=place / "atlas", show_progress=False) and place / "atlas"


def types_of(file: Path) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in pq.read_schema(file)}


@pytest.mark.parametrize("name", TABLES)
def test_a_column_is_of_its_type_whatever_is_in_it(bare: Path, name: str) -> None:
    for place in (bare, SHIPPED):
        found = types_of(place / f"{name}.parquet")
        assert found == {column: TABLES[name][column].type for column in found}
        assert found.keys() <= TABLES[name].keys()


@pytest.mark.parametrize("name", TABLES)
def test_an_atlas_without_nulls_and_one_with_them_are_one_data_set(bare: Path, name: str) -> None:
    files = [place / f"{name}.parquet" for place in (bare, SHIPPED)]
    for order in (files, files[::-1]):
        both = ds.dataset([ds.dataset(file) for file in order]).to_table()
        assert both.num_rows == sum(pq.read_metadata(file).num_rows for file in files)


def test_joined_tables_are_of_these_types_too(bare: Path) -> None:
    first, second = rs.atlas.open(bare), rs.atlas.open(SHIPPED)
    assert first.statistics["verdict"].isna().all()
    for both in (first.join(second), second.join(first)):
        for name, table in both.tables.items():
            dtypes = {**dict(first.tables[name].dtypes), **dict(second.tables[name].dtypes)}
            assert dict(table.dtypes) == dict(typed(name, table).dtypes) == dtypes
        assert set(both.statistics["verdict"].dropna()) == set(second.statistics["verdict"].dropna())


def changed(place: Path, name: str, column: str, values: Any) -> None:
    """Put other values into a column, with the checksums that belong to them."""
    file = place / f"{name}.parquet"
    table = pq.read_table(file)
    made = values(table[column].to_pylist()) if callable(values) else values
    pq.write_table(table.set_column(table.schema.get_field_index(column), column, made), file)
    about = json.loads((place / "atlas.json").read_text())
    rewritten(place, files=about["files"] | {file.name: sha256(file)})


def each(turn: Callable[[Any], Any], of: pa.DataType | None = None) -> Callable[[list[Any]], pa.Array]:
    return lambda values: pa.array([turn(value) for value in values], of)


ODD = {
    ("profiles", "tau", each(str)): "the column 'tau' holds text, not numbers",
    ("heads", "positional_score", each(str)): "the column 'positional_score' holds text, not numbers",
    ("heads", "layer", each(float)): "the column 'layer' holds numbers, not whole numbers",
    ("heads", "layer", each(lambda layer: layer + 100_000)): "the column 'layer' holds what is no int16",
    (
        "heads",
        "little_at_stake",
        each(lambda _: "no"),
    ): "the column 'little_at_stake' holds text, not yes or no",
    ("heads", "model", each(lambda name: [name])): "the column 'model' holds",
    ("statistics", "verdict", each(lambda _: 1.0)): "the column 'verdict' holds numbers, not text",
    ("statistics", "statistic", each(lambda _: None)): "the column 'statistic' has rows without a value",
    ("profiles", "seed", each(lambda _: None, pa.int64())): "the column 'seed' has rows without a value",
    ("profiles", "settings", each(lambda _: "gamma: 0.1")): "the column 'settings' holds what is no JSON",
    ("profiles", "settings", each(lambda _: "[1]")): "the column 'settings' holds JSON that is no dictionary",
}


@pytest.mark.parametrize(("case", "said"), ODD.items(), ids=list(ODD.values()))
def test_other_types_with_right_checksums_are_refused_in_a_sentence(
    bare: Path, tmp_path: Path, case: tuple[str, str, Any], said: str
) -> None:
    name, column, values = case
    place = rs.atlas.open(bare).save(tmp_path / "atlas")
    changed(place, name, column, values)
    with pytest.raises(RunError, match=re.escape(said)) as told:
        rs.atlas.open(place)
    assert str(told.value).startswith(f"{place / name}.parquet is damaged (")
    assert str(told.value).endswith("fetch or make the atlas again")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"left_out": ["one"]}, "its 'left_out' is no dictionary of counts"),
        ({"left_out": {"not finished": "two"}}, "its 'left_out' is no dictionary of counts"),
        ({"name": 5}, "its 'name' is no text"),
        ({"license": None}, "its 'license' is no text"),
    ],
)
def test_an_odd_description_with_a_right_checksum_is_refused(
    bare: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    place = rs.atlas.open(bare).save(tmp_path / "atlas")
    rewritten(place, **changes)
    with pytest.raises(RunError, match=said):
        rs.atlas.open(place)


def test_what_earlier_versions_wrote_is_read(bare: Path, tmp_path: Path) -> None:
    """Without nulls their verdicts were numbers, all of them missing; short texts and dictionaries are texts, too."""
    place = rs.atlas.open(bare).save(tmp_path / "atlas")
    changed(place, "statistics", "verdict", lambda values: pa.nulls(len(values), pa.float64()))
    changed(place, "heads", "model", each(str, pa.string()))
    changed(place, "heads", "task", lambda values: pa.array(values).dictionary_encode())
    changed(place, "profiles", "tau", each(lambda tau: round(tau * 1e4), pa.int64()))
    again, before = rs.atlas.open(place), rs.atlas.open(bare)
    pd.testing.assert_frame_equal(again.statistics, before.statistics)
    pd.testing.assert_frame_equal(again.heads, before.heads)
    assert again.profiles["tau"].tolist() == [1.0]


def test_nothing_is_written_that_could_not_be_opened(bare: Path, tmp_path: Path) -> None:
    found = rs.atlas.open(bare)
    odd = rs.atlas.Atlas(found.tables | {"profiles": found.profiles.assign(tau="warm")})
    with pytest.raises(RunError, match="the column 'tau' holds text, not numbers"):
        odd.save(tmp_path / "atlas")
    assert not (tmp_path / "atlas").exists()
