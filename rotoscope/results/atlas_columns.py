"""What the tables of an atlas hold: every column with its meaning and its type. The card of an atlas is made from this.

A type is the same in every atlas, whatever is in it: a column in which nothing was measured is of its type, too, so that many
atlases can be read as one data set. A change that older readers cannot read makes a new major version of `SCHEMA`; a new
column, which they ignore, a minor one.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from rotoscope.maths.known_patterns import KNOWN

SCHEMA = "1.0"
KEY = "profile"

TEXT, FLAG, INDEX, COUNT, SCORE, NUMBER = (
    pa.large_string(), pa.bool_(), pa.int16(), pa.int64(), pa.float32(), pa.float64(),
)  # fmt: skip
"""Scores are kept in single precision: prompts spread far more than that."""


class Column(NamedTuple):
    """A column of a table of an atlas."""

    meaning: str
    type: pa.DataType
    everywhere: bool = True
    """Whether every row has a value; what was not measured, or has none, is missing otherwise."""


def _score(meaning: str) -> Column:
    return Column(meaning, SCORE, everywhere=False)


def _number(meaning: str) -> Column:
    return Column(meaning, NUMBER, everywhere=False)


HEADS = {
    KEY: Column("which profile, a row of profiles.parquet: a hash of model, settings, prompts and tau", TEXT),
    "model": Column("name of the model; of one in a folder, the folder's own name", TEXT),
    "fingerprint": Column("hash of the model's configuration and of a sample of every weight", TEXT),
    "architecture": Column("model type, as transformers calls it", TEXT),
    "task": Column("what the model was shown", TEXT),
    "seed": Column("of the prompts", COUNT),
    "tau": Column("temperature of the swap weights", NUMBER),
    "layer": Column("from 0", INDEX),
    "head": Column("from 0", INDEX),
    "relative_depth": _score("0 the first layer, 1 the last"),
    "positional_score": _score("mean over prompts"),
    "positional_score_low": _score("lower end of its 95 % interval over prompts"),
    "positional_score_high": _score("upper end"),
    "symbolic_score": _score("mean over prompts"),
    "symbolic_score_low": _score("lower end of its 95 % interval over prompts"),
    "symbolic_score_high": _score("upper end"),
    "head_class": Column(
        "positional, symbolic, carried, uniform or mixed; none where the head sees no swap",
        TEXT,
        everywhere=False,
    ),
    "class_stability": _score("share of resamples of the prompts in which the head keeps its class"),
    "little_at_stake": Column(
        "whether hardly any of its attention lies on what is swapped", FLAG, everywhere=False
    ),
    "swapped_mass": _score("attention on what is swapped"),
    "relative_entropy": _score("of its attention: 1 is spread evenly"),
    "effective_swaps": _score("how many swaps carry the weight"),
    "prompts": Column("on which the head has a score", pa.int32()),
}
"""Every atlas has these."""
PERMUTED = {
    "input_positional_score": _score("the same with the prompt itself permuted, where it was"),
    "input_symbolic_score": _score("likewise"),
    "covered_share": _score("share of the swap weight that those swaps hold"),
}
KNOWN_SCORES = {
    name: _score(f"score as a {name.replace('_', ' ')} head, where it was measured") for name in KNOWN
}
PROFILES = {
    KEY: HEADS[KEY],
    "model": HEADS["model"],
    "fingerprint": HEADS["fingerprint"],
    "architecture": HEADS["architecture"],
    "dtype": Column("of the weights while they were read", TEXT),
    "layers": Column("of the model", COUNT),
    "heads": Column("of all layers", COUNT),
    "task": HEADS["task"],
    "settings_key": Column(
        "hash of task, its sizes and how heads were scored: only profiles with the same one can be compared",
        TEXT,
    ),
    "settings": Column("the same to read, as JSON, without what could hold a text or a path", TEXT),
    "prompts_hash": Column("which prompts", TEXT),
    "prompts": Column("how many", COUNT),
    "seed": HEADS["seed"],
    "tau": HEADS["tau"],
    "gamma": _number("tolerance of the classes"),
    "accuracy": _number("of the model's own answers, where the task has some"),
    "chance": _number("accuracy of guessing"),
    "null_name": Column("what stands beside the statistics: random, gaussian or none", TEXT),
    "null_draws": Column("how often it was drawn", COUNT),
    "proof_difference": _number("largest error of an attention weight rebuilt after a permutation"),
    "rotoscope": Column("version that measured", TEXT),
}
STATISTICS = {
    KEY: HEADS[KEY],
    "statistic": Column("its name, as in the statistics of a profile", TEXT),
    "value": _number("of the model"),
    "low": _number("lower end of its 95 % interval over prompts"),
    "high": _number("upper end"),
    "null_value": _number(
        "mean over the draws of the null: randomly initialised models of the same shape; missing without a null"
    ),
    "null_low": _number("where 95 % of further draws would lie"),
    "null_high": _number("likewise"),
    "verdict": Column(
        "beyond the null, also in the null, or no verdict; missing without a null", TEXT, everywhere=False
    ),
}

TABLES = {"heads": HEADS | PERMUTED | KNOWN_SCORES, "profiles": PROFILES, "statistics": STATISTICS}
"""Every column that this version writes, by table."""
NEEDED = {"heads": tuple(HEADS), "profiles": tuple(PROFILES), "statistics": tuple(STATISTICS)}
"""Those that a reader counts on."""
