"""The tables of an atlas in the types that `atlas_columns` gives their columns: cast when made, joined and saved, checked when opened.

A checksum says that a file is what somebody wrote, not that it is an atlas: what is of another kind is refused here, in a
sentence, before anybody computes with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pandas as pd
import pyarrow as pa

from rotoscope.errors import RunError
from rotoscope.results.atlas_columns import TABLES, Column

SETTINGS = "settings"
_MISSING_TRUTHS = {pa.bool_(): pd.BooleanDtype()}


def typed(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The table of that name with every column that the schema knows in its type, those that nobody knows as they are.

    A column of another kind, a row without what every row has, and settings that are no JSON are refused.
    """
    made = {}
    for column, about in TABLES[name].items():
        if column in table:
            values = _array(column, about, table[column]).to_pandas(types_mapper=_MISSING_TRUTHS.get)
            made[column] = values.set_axis(table.index)
    for one in set(made.get(SETTINGS, ())):
        _check_settings(one)
    return table.assign(**made)


def arrow(name: str, table: pd.DataFrame) -> pa.Table:
    """The same as it is written: a column is of its type whatever is in it."""
    strange = pa.Table.from_pandas(
        table[[column for column in table if column not in TABLES[name]]], preserve_index=False
    )
    columns = {
        column: _array(column, TABLES[name][column], table[column])
        if column in TABLES[name]
        else strange[column]
        for column in table
    }
    return pa.table(columns)


def stacked(name: str, tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Tables of one name on top of each other, in the schema's order of columns, what nobody knows last."""
    parts = list(tables)
    there = dict.fromkeys(column for part in parts for column in part)
    order = [
        *(column for column in TABLES[name] if column in there),
        *(c for c in there if c not in TABLES[name]),
    ]
    filled = [part.dropna(axis="columns", how="all") for part in parts if len(part)]
    if not filled:
        return typed(name, pd.DataFrame(columns=order))
    return typed(name, pd.concat(filled, ignore_index=True).reindex(columns=order))


def _array(name: str, column: Column, values: pd.Series) -> pa.Array:
    """A column in its type; without any values it has no kind of its own, and takes that type."""
    try:
        found = pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as problem:
        raise RunError(f"the column '{name}' holds more than {_kind(column.type)}") from problem
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if pa.types.is_dictionary(found.type):
        found = found.dictionary_decode()
    if column.everywhere and found.null_count:
        raise RunError(f"the column '{name}' has rows without a value")
    if found.null_count == len(found):
        return pa.nulls(len(found), column.type)
    if _kind(found.type) not in (_kind(column.type), *([WHOLE] if _kind(column.type) == NUMBERS else [])):
        raise RunError(f"the column '{name}' holds {_kind(found.type)}, not {_kind(column.type)}")
    try:
        return found.cast(column.type)
    except pa.ArrowException as problem:
        raise RunError(f"the column '{name}' holds what is no {column.type} ({problem})") from problem


TRUTHS, WHOLE, NUMBERS, TEXTS = "yes or no", "whole numbers", "numbers", "text"


def _kind(of: pa.DataType) -> str:
    """In words."""
    if pa.types.is_boolean(of):
        return TRUTHS
    if pa.types.is_integer(of):
        return WHOLE
    if pa.types.is_floating(of):
        return NUMBERS
    return TEXTS if pa.types.is_string(of) or pa.types.is_large_string(of) else str(of)


def _check_settings(text: str) -> None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise RunError(f"the column '{SETTINGS}' holds what is no JSON") from problem
    if not isinstance(found, dict):
        raise RunError(f"the column '{SETTINGS}' holds JSON that is no dictionary")
