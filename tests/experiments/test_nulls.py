"""Nulls: how they are drawn, read and rescaled, and what stands beside a profile's figures because of them."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

import rotoscope as rs
from rotoscope.errors import ModelError, RotoscopeError, RunError
from rotoscope.experiments.profile import nulls as profile_nulls
from rotoscope.measures import null as nulls
from rotoscope.measures.batches import batches
from rotoscope.measures.null import make_nulls, null_seed
from rotoscope.models.reader import HeadReader
from rotoscope.runs.run import Run
from rotoscope.stats.statistics import least_beyond, statistics
from rotoscope.stats.verdict import Figure, verdicts
from tests.runs.test_statistics import prompts as scores_of
from tests.tiny_gguf import write_gguf
from tests.tiny_models import GROUPED, from_config, tiny, tokens


def test_random_null_has_the_real_spread() -> None:
    model = tiny("llama")
    found = rs.profile(model, tokens=tokens(3, 20), null="random", null_draws=2)
    real = found.prompts["block_spread"].median()
    for _, draw in found.tables["null_prompts"].groupby("draw"):
        assert draw["block_spread"].median() == pytest.approx(real, rel=0.15)
    assert found.tables["null_factors"]["draw"].tolist() == [0, 1]
    assert found.nulls["draw"].nunique() == 2


@pytest.mark.parametrize("null", ["random", "gaussian"])
def test_every_draw_of_a_null_is_another(null: str) -> None:
    nulls = rs.profile(tiny("llama"), tokens=tokens(1, 12), null=null, null_draws=3).nulls
    draws = [rows["positional_score"].to_numpy() for _, rows in nulls.groupby("draw")]
    assert len(draws) == 3
    assert all(np.abs(one - other).max() > 1e-3 for one, other in itertools.combinations(draws, 2))


def test_gaussian_keys_keep_mean_and_spread() -> None:
    model, ids = tiny("llama"), tokens(1, 400)
    reader = HeadReader(model)
    work = batches(rs.tasks.from_tokens(ids, [(p, p + 2) for p in range(10, 390, 2)]), "last", 1)
    null = next(make_nulls(rs.load((model, None)), reader, "gaussian", [0], pd.DataFrame(), work))

    def visit(layer) -> None:
        noisy = null.transform(layer, work[0])
        inside, outside = slice(10, 390), slice(0, 10)
        assert torch.equal(noisy.keys[:, :, outside], layer.keys[:, :, outside])
        real, drawn = layer.keys[0, :, inside], noisy.keys[0, :, inside]
        assert not torch.allclose(real, drawn)
        error = real.std(1) / 380**0.5
        assert ((drawn.mean(1) - real.mean(1)).abs() < 5 * error).all()
        assert torch.allclose(drawn.std(1), real.std(1), rtol=0.25)

    reader.read(ids, (399,), visit)


def test_a_class_that_cannot_be_initialised(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    model = tiny("llama")

    def refuse(self, config) -> None:
        raise RuntimeError("needs a checkpoint")

    monkeypatch.setattr(type(model), "__init__", refuse)
    with pytest.raises(ModelError, match="cannot be initialised.*--null gaussian"):
        rs.profile(model, tokens=tokens(), null="random", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RotoscopeError, match="unknown null"):
        rs.profile(model, tokens=tokens(), null="flat")


def test_a_quantised_model_has_no_random_null_and_says_so_first(tmp_path) -> None:
    model = tiny("llama")
    model.config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    with pytest.raises(ModelError, match="is quantised, .* no random null for it; use --null gaussian"):
        rs.profile(model, tokens=tokens(), null="random", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    del model.config.quantization_config
    weight = model.model.layers[0].mlp.up_proj.weight
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(
        weight.to(torch.float8_e4m3fn), requires_grad=False
    )
    with pytest.raises(ModelError, match="is quantised"):
        rs.profile(model, tokens=tokens(), null="random")


def test_a_model_that_transformers_has_dequantised_has_a_random_null(tmp_path) -> None:
    file = write_gguf(tmp_path / "a.gguf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name).eval()
    assert model.config.quantization_config
    profile = rs.profile(model, tokens=tokens(2, 10) % 50, null_draws=2, examples=False)
    assert len(profile.nulls) > 0
    assert profile.nulls["positional_score"].between(0, 1).all()


def test_draws_have_seeds_of_their_own_from_the_seed_of_the_run() -> None:
    model, ids = tiny("llama", num_hidden_layers=1), tokens(2, 10)
    quick = {"tokens": ids, "null_draws": 2, "examples": False}
    first, again, other = (rs.profile(model, seed=seed, **quick) for seed in (0, None, 1))
    pd.testing.assert_frame_equal(first.nulls, again.nulls)
    scores = {
        float(rows["positional_score"].sum()) for run in (first, other) for _, rows in run.nulls.groupby("draw")
    }
    assert len(scores) == 4
    assert [first.run.settings["seed"], other.run.settings["seed"]] == [0, 1]
    assert len({null_seed(seed, draw) for seed in range(40) for draw in range(5)} | set(range(40))) == 240
    with pytest.raises(RotoscopeError, match="seed must be at least 0"):
        rs.profile(model, seed=-1, **quick)


def test_a_null_is_read_once_and_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six prompts in three batches, two of which the logits are rescaled by: three readings a draw, and no proof of it."""
    model, seen = tiny("llama", num_hidden_layers=1), []
    read, made = HeadReader.read, HeadReader.__init__

    def reading(self, ids, *rest, **options):
        seen.append(self.model is model)
        return read(self, ids, *rest, **options)

    def making(self, made_of, **options):
        assert made_of is model or list(options) == ["like"]
        made(self, made_of, **options)

    monkeypatch.setattr(HeadReader, "read", reading)
    monkeypatch.setattr(HeadReader, "__init__", making)
    quick = {"tokens": tokens(6, 10), "batch_tokens": 20, "null_draws": 2, "examples": False}
    rs.profile(model, **quick)
    assert (seen.count(True), seen.count(False)) == (3, 2 * 3)
    seen.clear()
    rs.profile(model, null="gaussian", **quick)
    assert (seen.count(True), seen.count(False)) == (3 + 3, 0)  # all draws from one reading


def test_verdicts_are_those_of_the_rule_on_every_draw() -> None:
    """Each draw, taken for a profile of its own, is one of the values the verdict rests on."""
    profile = rs.profile(tiny("llama"), tokens=tokens(6, 12), null="gaussian", null_draws=3, examples=False)
    found = profile.statistics()
    tables = profile.tables
    draws = [
        statistics({"prompts": rows}, 1e-4, profile.gamma).set_index("statistic")["value"]
        for _, rows in tables["null_prompts"].groupby("draw")
    ]
    figures = []
    for row in found.to_dict("records"):
        name = row["statistic"]
        assert row["null_value"] == pytest.approx(np.mean([draw[name] for draw in draws]))
        error = (row["high"] - row["value"]) / stats.t.ppf(0.975, 5)
        figures.append(Figure(row["value"], error, [draw[name] for draw in draws]))
    inside = (found["high"] < 1) & (found["low"] > 0)  # where the interval is not cut off
    for row, verdict, whole in zip(found.to_dict("records"), verdicts(figures), inside, strict=True):
        assert row["null_draws"] == 3
        if whole:
            assert row["verdict"] == verdict.verdict
    assert "verdict" not in statistics({"prompts": profile.prompts}, 1e-4, profile.gamma)


def test_a_difference_that_is_certain_may_be_too_small() -> None:
    """A correlation .03 further down than every draw's, and medians .03 higher: both are surely there, and as in the null."""

    def scores(shift: float, seed: int) -> pd.DataFrame:
        dice = np.random.default_rng(seed)
        p = np.linspace(0.2, 0.7, 40) + shift + dice.normal(0, 1e-4, (6, 40))
        s = 1 - p + (0.02 - 0.6 * shift) * np.resize([1, -1], 40)
        rows = [(k, h // 10, h % 10, 1e-4, p[k, h], s[k, h]) for k in range(6) for h in range(40)]
        return pd.DataFrame(
            rows, columns=["prompt", "layer", "head", "tau", "positional_score", "symbolic_score"]
        )

    draws = [scores(0.0, 1 + draw).assign(null_name="random", draw=draw) for draw in range(19)]
    tables = {"prompts": scores(0.03, 0), "null_prompts": pd.concat(draws)}
    found = statistics(tables, 1e-4, 0.1).set_index("statistic")
    for name in ("correlation", "early positional"):
        row = found.loc[name]
        assert not row["null_low"] < row["value"] < row["null_high"]
        assert row["verdict"] == "as in the null"


def test_one_draw_and_one_prompt_decide_nothing() -> None:
    model = tiny("llama", num_hidden_layers=1)
    one = rs.profile(model, tokens=tokens(3, 8), null_draws=1, examples=False).statistics()
    assert set(one["verdict"]) <= {"undecided", "no verdict"}
    assert (one["reason"] == "1 draw: a verdict of beyond the null takes 19").any()
    alone = rs.profile(model, tokens=tokens(1, 8), null_draws=2, examples=False).statistics()
    assert set(alone["verdict"]) <= {"undecided", "no verdict"}
    assert (alone["reason"] == "one prompt has no standard error").any()
    assert alone[["low", "high"]].isna().all(axis=None)


def test_a_null_stands_beside_every_figure_where_it_is_asked_for() -> None:
    model = tiny("llama", num_hidden_layers=1)
    profile = rs.profile(model, tokens=tokens(1, 8), null="random", null_draws=2)
    assert profile.null_name == "random"
    assert profile.nulls["draw"].unique().tolist() == [0, 1]
    assert profile.statistics()["null_value"].notna().any()
    plain = rs.profile(model, tokens=tokens(1, 8))
    assert plain.null_name is None
    assert "null='random'" in repr(plain)


def test_resumed_run_with_more_prompts_is_refused(tmp_path) -> None:
    model = tiny("llama")
    rs.profile(model, tokens=tokens(2, 12), out=tmp_path / "run", null_draws=1)
    with pytest.raises(RunError, match="prompts: 2 there, 4 now"):
        rs.profile(model, tokens=tokens(4, 12), out=tmp_path / "run", null_draws=1)
    assert len(rs.open(tmp_path / "run").nulls) == 12


@pytest.mark.parametrize("null", ["random", "gaussian"])
def test_killed_in_the_null_goes_on_there(null: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny("llama", num_hidden_layers=1), tokens(2, 10)
    settings = {"tokens": ids, "batch_tokens": 10, "null": null, "null_draws": 2, "frequencies": [(0, 1)]}
    whole = rs.profile(model, **settings)
    add = Run.add

    def limited(self, key, tables) -> None:
        if key == f"{null}-1-000001-000002":
            raise KeyboardInterrupt
        add(self, key, tables)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "add", limited)
        with pytest.raises(KeyboardInterrupt):
            rs.profile(model, out=tmp_path / "run", **settings)
    resumed = rs.profile(model, out=tmp_path / "run", **settings)
    pd.testing.assert_frame_equal(resumed.nulls, whole.nulls)
    pd.testing.assert_frame_equal(rs.open(tmp_path / "run").frequencies, whole.frequencies)


def test_random_weights_are_anticorrelated_too() -> None:
    """Why a null stands beside every claim: r near -0.9 needs no training."""
    config = LlamaConfig(**{**GROUPED, "num_hidden_layers": 6, "num_attention_heads": 8, "hidden_size": 128})
    model = from_config(config, sharp=6.0)
    found = rs.profile(model, tokens=tokens(8, 60), tau=1e-4, null="none")
    assert found.summary().correlation < -0.6


@pytest.mark.parametrize("in_place", [True, False])
def test_one_random_model_at_a_time(in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would take the memory of three models, where what is said before counts two. Where its weights can be drawn in place
    one is made for all draws, and read as the first was."""
    drawn, alive, original = [], [], nulls.fresh_model

    def fresh(*how: Any) -> Any:
        alive.append(sum(one() is not None for one in drawn))
        made = original(*how)
        drawn.append(weakref.ref(made))
        return made

    monkeypatch.setattr(nulls, "fresh_model", fresh)
    if not in_place:
        monkeypatch.setattr(nulls, "_drawn_in_place", lambda model, seed: False)
    how = {"null_draws": 3, "examples": False, "show_progress": False}
    rs.profile(tiny("llama"), tokens=tokens(2, 8), null="random", **how)
    assert len(drawn) == (2 if in_place else 1 + 2 * 3)  # the first says whether one can be made at all
    assert set(alive) == {0}


@pytest.mark.parametrize("name", ["llama", "gptj", "gpt_oss"])
def test_weights_drawn_in_place_are_those_of_their_seed(name: str) -> None:
    """Whatever was drawn before; other seeds give other weights of the same spread, and constants stay."""
    subject = rs.load((tiny(name), None))
    models = nulls.RandomModels(subject, HeadReader(subject.model))

    def weights(seed: int) -> dict[str, torch.Tensor]:
        return {key: weight.clone() for key, weight in models.reader(seed).model.state_dict().items()}

    first, other, again = weights(1), weights(2), weights(1)
    alone, in_place = nulls._initialise(subject, 1, subject.device)
    assert in_place
    for key, weight in alone.state_dict().items():
        assert torch.equal(weight, first[key])
        assert torch.equal(weight, again[key])
        if weight.is_floating_point() and "proj.weight" in key:
            assert not torch.equal(weight, other[key])
            assert other[key].std() == pytest.approx(float(weight.std()), rel=0.1)


def test_a_weight_that_is_not_drawn_again_is_noticed() -> None:
    model = nulls.fresh_model(type(tiny("llama")), tiny("llama").config, 0)
    assert nulls._drawn_in_place(model, 0)
    model.own = torch.nn.Parameter(torch.randn(8, 8))
    assert not nulls._drawn_in_place(model, 0)


def test_beyond_the_null_is_beyond_both() -> None:
    """Of two nulls a figure has the verdict of the one that it is least beyond, and the table shows both."""
    how: dict[str, Any] = {"tokens": tokens(4, 12), "null_draws": 3, "examples": False}
    model = tiny("llama")
    both = rs.profile(model, null="both", **how)
    found = both.statistics().set_index("statistic")
    for name in ("random", "gaussian"):
        alone = rs.profile(model, null=name, **how)
        single = alone.statistics().set_index("statistic")
        for column in ("value", "low", "high"):
            pd.testing.assert_series_equal(
                found[f"{name}_{column}"], single[f"null_{column}"], check_names=False
            )
        assert found[f"{name}_verdict"].tolist() == single["verdict"].tolist()
        chosen = found["null_name"] == name
        assert found.loc[chosen, "p_value"].equals(single.loc[chosen, "p_value"])
    assert both.null_name == "random"
    assert set(both.nulls["null_name"]) == {"random"}


def judged(values: dict[str, float] | None = None, **answers: str) -> pd.DataFrame:
    """A statistic of 1 beside each null, with its verdict there and the null's own value."""
    subject = {
        "statistic": "a",
        "meaning": "",
        "value": 1.0,
        "low": 0.9,
        "high": 1.1,
        "error": 0.1,
        "prompts": 4,
    }
    null = {"null_low": -1.0, "null_high": 1.0, "p_value": 0.05, "little_at_stake": None, "reason": "undefined"}
    null_values = {"null_value": 0.0} | (values or {})
    return least_beyond(
        {
            k: pd.DataFrame([subject | null | {"null_value": null_values.get(k, 0.0), "verdict": v}])
            for k, v in answers.items()
        }
    )


@pytest.mark.parametrize(
    ("random", "gaussian", "verdict"),
    [
        ("beyond the null", "beyond the null", "beyond the null"),
        ("beyond the null", "undecided", "undecided"),
        ("as in the null", "beyond the null", "as in the null"),
        ("undecided", "as in the null", "as in the null"),
        ("beyond the null", "no verdict", "undecided"),
        ("as in the null", "no verdict", "as in the null"),
        ("no verdict", "no verdict", "no verdict"),
    ],
)
def test_the_null_that_a_figure_is_least_beyond_decides(random: str, gaussian: str, verdict: str) -> None:
    [row] = judged(random=random, gaussian=gaussian).to_dict("records")
    assert row["verdict"] == verdict
    assert (row["random_verdict"], row["gaussian_verdict"]) == (random, gaussian)


def test_a_figure_between_two_nulls_is_beyond_neither() -> None:
    beyond = {"random": "beyond the null", "gaussian": "beyond the null"}
    [row] = judged({"random": 0.2, "gaussian": 2.0}, **beyond).to_dict("records")
    assert (row["verdict"], row["reason"]) == ("undecided", "between the two nulls")
    assert (row["random_verdict"], row["gaussian_verdict"]) == ("beyond the null",) * 2
    [row] = judged({"random": 1.5, "gaussian": 2.0}, **beyond).to_dict("records")
    assert row["verdict"] == "beyond the null"
    [row] = judged(random="beyond the null", gaussian="no verdict").to_dict("records")
    assert row["reason"] == "no verdict against the gaussian null: undefined"


def test_shares_are_the_same_quantity_beside_both_nulls() -> None:
    """Half of the heads are symbolic at their layer, and half of those carried; with Gaussian keys no prompt is permuted."""
    p, s = np.tile([0.0, 0.0, 0.5, 0.5], (3, 1)), np.tile([1.0, 1.0, 0.5, 0.5], (3, 1))
    at_layer = scores_of(p, s, 2)
    permuted = at_layer.assign(
        covered_share=1.0,
        input_positional_score=np.tile([0.0, 1.0, 0.5, 0.5], 3),
        input_symbolic_score=np.tile([1.0, 0.0, 0.5, 0.5], 3),
    )
    null = pd.concat(
        [permuted.assign(null_name="random", draw=0), at_layer.assign(null_name="gaussian", draw=0)]
    )
    found = statistics({"prompts": permuted, "null_prompts": null}, 1e-4, 0.1).set_index("statistic")
    row = found.loc["share symbolic"]
    assert row[["value", "random_value", "gaussian_value"]].tolist() == [0.5, 0.5, 0.5]
    assert found.loc["carried of symbolic", "value"] == 0.5


def test_of_two_nulls_the_one_that_can_be_made_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama", num_hidden_layers=1)
    model.config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    found = rs.profile(model, tokens=tokens(2, 8), null="both", null_draws=1, examples=False)
    assert found.null_name == "gaussian"
    assert any(caveat.startswith("no random null: ") for caveat in found.run.warnings)


@pytest.mark.parametrize(("most", "draws"), [(10**10, 39), (100, 19)])
def test_quick_draws_are_made_more_often(most: int, draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_nulls, "QUICK_DRAW", most)
    subject = rs.load((tiny("llama", num_hidden_layers=1), None))
    assert profile_nulls.usual_draws(subject, rs.tasks.from_tokens(tokens(2, 8))) == draws
    found = rs.profile(subject, tokens=tokens(2, 8), null="gaussian", examples=False)
    assert found.run.settings["null_draws"] == draws
    assert found.nulls["draw"].nunique() == draws
