"""The card of an atlas: a README with the front matter that data sets have, made from what is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from rotoscope.results.atlas_columns import TABLES
from rotoscope.results.atlas_models import count_models

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
LARGER = "1M<n<10M"
ABOUT = {
    "heads": "one row per profile, layer and head",
    "profiles": "one row per profile: a model on some prompts at one temperature",
    "statistics": "one row per profile and statistic, with what its null gives",
}
WHAT = "Does an attention head attend by position or by symbol?"
NULLS = (
    "A null is a randomly initialised model of the same shape (or Gaussian keys), scored on the same prompts; its figures stand "
    "beside those of the model in `statistics`. Where there is none, nothing tells a finding from what any model of that shape "
    "shows."
)
BEWARE = (
    "Scores of different tasks, sizes, prefixes or temperatures are not comparable; rows with the same `settings_key` and `tau` "
    "are. Few prompts make wide intervals: use the `_low` and `_high` columns. A class says how a head behaves under swaps on one "
    "task, not what it is for."
)


def card(tables: Mapping[str, pd.DataFrame], about: Mapping[str, Any]) -> str:
    """The card, whole."""
    return "\n".join([*_front(tables, about), "", *_text(tables, about)]) + "\n"


def _front(tables: Mapping[str, pd.DataFrame], about: Mapping[str, Any]) -> list[str]:
    rows = len(tables["heads"])
    size = next((word for most, word in SIZES if rows < most), LARGER)
    lines = ["---", f"pretty_name: {_quoted(about['name'])}", f"license: {_quoted(about['license'])}"]
    lines += ["tags:", *(f"- {tag}" for tag in ("interpretability", "attention-heads", "rope", "rotoscope"))]
    lines += ["size_categories:", f"- {size}", "configs:"]
    for name in TABLES:
        usual = ["  default: true"] if name == "heads" else []
        lines += [f"- config_name: {name}", f"  data_files: {name}.parquet", *usual]
    return [*lines, "---"]


def _text(tables: Mapping[str, pd.DataFrame], about: Mapping[str, Any]) -> list[str]:
    profiles = tables["profiles"]
    models = count_models(profiles)
    shares = profiles["null_name"].value_counts()
    nulls = ", ".join(f"{number} with {_null(str(name))}" for name, number in shares.items())
    draws = profiles.loc[profiles["null_draws"] > 0, "null_draws"]
    drawn = f", at least {draws.min()} draws each" if len(draws) else ""
    left_out = "; ".join(f"{number} {reason}" for reason, number in sorted(about["left_out"].items()))
    size = (
        f"{models} model{'' if models == 1 else 's'} in {len(profiles)} profiles, {len(tables['heads']):,} rows"
    )
    made = f"rotoscope {about['rotoscope']}, schema {about['schema']}"
    lines = [
        f"# {_cell(about['name'])}",
        "",
        f"{WHAT} Every head of {size}, measured by swapping what the heads look at ({made}).",
        "",
        "## What is in it",
        "",
        "| model | architecture | layers | heads | task | settings | prompts | seeds | tau |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    by = ["model", "architecture", "layers", "heads", "task", "settings", "prompts", "tau"]
    for key, rows in profiles.groupby(by, sort=True, dropna=False):
        model, architecture, layers, heads, task, settings, prompts, tau = key
        seeds = " ".join(str(seed) for seed in sorted(rows["seed"].unique()))
        cells = (model, architecture, layers, heads, task, _sizes(settings), prompts, seeds, f"{tau:g}")
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    lines += [
        "",
        f"Nulls: {nulls}{drawn}. {NULLS}",
        "",
        f"Left out: {left_out or 'nothing'}.",
        "",
        BEWARE,
        "",
        "Not in it: weights, texts of prompts and answers, folders and user names.",
        "",
        "## How to read it",
        "",
        "```python",
        "import rotoscope as rs",
        "",
        'atlas = rs.atlas.open("this folder")  # checks schema and checksums',
        "atlas.heads",
        'atlas.place(rs.open("runs/mine")).table  # where does my model lie?',
        "```",
        "",
        "Or with anything that reads Parquet. `atlas.json` has the SHA-256 of every table.",
    ]
    for name, columns in TABLES.items():
        lines += [
            "",
            f"## {name}.parquet",
            "",
            f"{ABOUT[name].capitalize()}.",
            "",
            "| column | type | meaning |",
            "|---|---|---|",
        ]
        lines += [
            f"| {column} | {_type(about.type)} | {about.meaning} |"
            for column, about in columns.items()
            if column in tables[name]
        ]
    return lines


def _type(of: object) -> str:
    """As most readers of Parquet call it."""
    return str(of).removeprefix("large_")


def _null(name: str) -> str:
    return "no null" if name == "none" else f"a {name} null"


def _sizes(settings: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in json.loads(settings).items() if value is not None)


def _cell(value: object) -> str:
    """Text that neither ends a cell of a table nor begins anything else."""
    return " ".join(str(value).replace("|", "/").replace("<", "&lt;").split())


def _quoted(text: str) -> str:
    """A text as YAML takes it, whatever is in it."""
    return json.dumps(str(text), ensure_ascii=False)
