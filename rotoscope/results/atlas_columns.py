"""What the tables of an atlas hold: every column with its meaning. The card of an atlas is made from this.

A change that older readers cannot read makes a new major version of `SCHEMA`; a new column, which they ignore, a minor one.
"""

from __future__ import annotations

from rotoscope.maths.known_patterns import KNOWN

SCHEMA = "1.0"
KEY = "profile"

HEADS = {
    KEY: "which profile, a row of profiles.parquet: a hash of model, settings, prompts and tau",
    "model": "name of the model; of one in a folder, the folder's own name",
    "fingerprint": "hash of the model's configuration and of a sample of every weight",
    "architecture": "model type, as transformers calls it",
    "task": "what the model was shown",
    "seed": "of the prompts",
    "tau": "temperature of the swap weights",
    "layer": "from 0",
    "head": "from 0",
    "relative_depth": "0 the first layer, 1 the last",
    "positional_score": "mean over prompts",
    "positional_score_low": "lower end of its 95 % interval over prompts",
    "positional_score_high": "upper end",
    "symbolic_score": "mean over prompts",
    "symbolic_score_low": "lower end of its 95 % interval over prompts",
    "symbolic_score_high": "upper end",
    "head_class": "positional, symbolic, carried, uniform or mixed; none where the head sees no swap",
    "class_stability": "share of resamples of the prompts in which the head keeps its class",
    "little_at_stake": "whether hardly any of its attention lies on what is swapped",
    "swapped_mass": "attention on what is swapped",
    "relative_entropy": "of its attention: 1 is spread evenly",
    "effective_swaps": "how many swaps carry the weight",
    "prompts": "on which the head has a score",
}
"""Every atlas has these."""
PERMUTED = {
    "input_positional_score": "the same with the prompt itself permuted, where it was",
    "input_symbolic_score": "likewise",
    "covered_share": "share of the swap weight that those swaps hold",
}
KNOWN_SCORES = {name: f"score as a {name.replace('_', ' ')} head, where it was measured" for name in KNOWN}
PROFILES = {
    KEY: HEADS[KEY],
    "model": HEADS["model"],
    "fingerprint": HEADS["fingerprint"],
    "architecture": HEADS["architecture"],
    "dtype": "of the weights while they were read",
    "layers": "of the model",
    "heads": "of all layers",
    "task": HEADS["task"],
    "settings_key": "hash of task, its sizes and how heads were scored: only profiles with the same one can be compared",
    "settings": "the same to read, as JSON, without what could hold a text or a path",
    "prompts_hash": "which prompts",
    "prompts": "how many",
    "seed": HEADS["seed"],
    "tau": HEADS["tau"],
    "gamma": "tolerance of the classes",
    "accuracy": "of the model's own answers, where the task has some",
    "chance": "accuracy of guessing",
    "null_name": "what stands beside the statistics: random, gaussian or none",
    "null_draws": "how often it was drawn",
    "proof_difference": "largest error of an attention weight rebuilt after a permutation",
    "rotoscope": "version that measured",
}
STATISTICS = {
    KEY: HEADS[KEY],
    "statistic": "its name, as in the statistics of a profile",
    "value": "of the model",
    "low": "lower end of its 95 % interval over prompts",
    "high": "upper end",
    "null_value": "mean over the draws of the null: randomly initialised models of the same shape; missing without a null",
    "null_low": "where 95 % of further draws would lie",
    "null_high": "likewise",
    "verdict": "beyond the null, also in the null, or no verdict; missing without a null",
}

TABLES = {"heads": HEADS | PERMUTED | KNOWN_SCORES, "profiles": PROFILES, "statistics": STATISTICS}
"""Every column that this version writes, by table."""
NEEDED = {"heads": tuple(HEADS), "profiles": tuple(PROFILES), "statistics": tuple(STATISTICS)}
"""Those that a reader counts on."""
