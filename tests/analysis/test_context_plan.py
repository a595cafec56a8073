"""Scalings of the angles on tiny models: what is measured, what is predicted, what is recommended and what is not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.analysis.batches import Halving, batches
from rotoscope.analysis.losses import token_losses
from rotoscope.analysis.plan.longer_heads import LongerHeads, looked_at, predicted_share, read_repeats
from rotoscope.analysis.plan.longer_inputs import cut, repeats_of, text_of
from rotoscope.errors import RotoscopeError, RunError
from rotoscope.figures.gallery import figures_of
from rotoscope.reading import HeadReader, LayerHeads
from rotoscope.reading.scaled import rope_scaling, rotation_tables, scaled
from rotoscope.results.context_plan import AS_IT_IS, CONTROL, ContextPlan
from rotoscope.results.record import RunRecord
from tests.models import tiny
from tests.reading.test_load import word_tokenizer

TRAINED, TO = 32, 128
SMALL: dict[str, Any] = {"trained": TRAINED, "to": TO, "prompts": 2, "asked": 8, "show_progress": False}
QUIET = Halving()


@pytest.fixture(scope="module")
def subject() -> rs.Subject:
    model = tiny("llama", max_position_embeddings=TRAINED, num_hidden_layers=2)
    return rs.load((model, word_tokenizer()), name="tiny")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("text") / "words.txt"
    file.write_text(" ".join(f"w{k}" for k in draw.integers(3, 128, 600)))
    return file


@pytest.fixture(scope="module")
def plan(subject: rs.Subject, text: Path, tmp_path_factory: pytest.TempPathFactory) -> ContextPlan:
    return rs.plan.context(subject, text=text, out=tmp_path_factory.mktemp("plan") / "run", **SMALL)


def test_every_setting_is_measured_at_every_length(plan: ContextPlan) -> None:
    assert plan.lengths == [32, 64, 128]
    assert plan.settings == [AS_IT_IS, "linear", "ntk", "yarn", "dynamic"]
    counted = plan.losses.groupby(["source", "setting", "length"])["prompt"].nunique()
    assert len(counted) == 2 * 5 * 3
    assert set(counted) == {2}
    measured = plan.heads.groupby(["setting", "length"]).size()
    assert len(measured) == 5 * 3 + 1
    assert set(measured) == {8}
    assert (CONTROL, TRAINED) in measured.index


def test_losses_are_those_of_a_model_that_reads_the_length_alone(
    plan: ContextPlan, subject: rs.Subject, text: Path
) -> None:
    prose = text_of(subject, (32, 64, 128), 8, 2, 0, text.read_text())
    for name in plan.settings:
        for n in plan.lengths:
            model = scaled(subject, rope_scaling(subject.model, name, TRAINED, TO), n)
            [batch, _] = batches(cut(prose, n), "task", 1)
            with torch.inference_mode():
                loss = token_losses(model, batch)[0][0, -8:].mean()
            rows = plan.losses.query("setting == @name and length == @n and source == 'text' and prompt == 0")
            assert rows["loss"].item() == pytest.approx(float(loss), abs=1e-4)


def test_as_it_is_and_dynamic_are_the_same_at_training_length(plan: ContextPlan) -> None:
    at = plan.losses.query("length == @TRAINED and source == 'repeats'").pivot(
        index="prompt", columns="setting", values="loss"
    )
    assert np.allclose(at[AS_IT_IS], at["dynamic"])
    assert not np.allclose(at[AS_IT_IS], at["linear"])


def test_the_planes_of_a_head_add_up_to_its_discrepancy(plan: ContextPlan) -> None:
    keys = ["setting", "length", "layer", "head"]
    whole = plan.heads.set_index(keys)["discrepancy"].sort_index()
    parts = plan.planes.groupby(keys)["gap"].sum()
    assert np.allclose(whole, parts, atol=1e-3)
    assert (whole > 0).all()


def test_what_is_predicted_for_the_same_input_is_what_is_there(plan: ContextPlan) -> None:
    keys = ["layer", "head"]
    for kind in ("on_followed", "on_previous"):
        said = plan.predicted.query("setting == @AS_IT_IS and length == @TRAINED").set_index(keys)[kind]
        found = plan.heads.query("setting == @AS_IT_IS and length == @TRAINED").set_index(keys)[kind]
        assert np.allclose(said, found.reindex(said.index), atol=1e-5)


def test_a_longer_input_of_equal_keys_is_predicted_exactly(subject: rs.Subject) -> None:
    """All keys alike but what followed: the sample that stands for more of them is then no sample at all."""
    model = scaled(subject, rope_scaling(subject.model, AS_IT_IS, TRAINED, TO), TO)
    reader = HeadReader(model.model)

    def alike(n: int) -> tuple[LayerHeads, torch.Tensor]:
        prompts = repeats_of(subject, n, 1, 0)
        layers: list[LayerHeads] = []
        reader.read(torch.tensor([prompts[0].tokens]), (len(prompts[0].tokens) - 1,), layers.append)
        one, followed = layers[0], len(prompts[0].tokens) - n // 2
        keys = shared[0].expand_as(one.keys).clone()
        keys[:, :, followed] = shared[1]
        made = LayerHeads(**{**vars(one), "keys": keys, "query": shared[2].expand_as(one.query)})
        return made, made.attention()[..., 0, followed]

    draw = torch.Generator().manual_seed(3)
    shared = [torch.randn(16, generator=draw) for _ in range(3)]
    short, _ = alike(TRAINED)
    _, wanted = alike(TO)
    tables = rotation_tables(model.model, TO)
    columns = short.layout.columns
    table = (tables[0][:, columns], tables[1][:, columns])
    found = predicted_share(short, table, TRAINED // 2 - 1, TO, TRAINED // 2)[..., 0]
    assert torch.allclose(found, wanted, rtol=0.05)
    nearer, _ = alike(TRAINED)
    assert not torch.allclose(
        nearer.attention()[..., 0, len(short.visible[0]) - TRAINED // 2], wanted, rtol=0.5
    )


def test_a_copying_head_is_one_that_looks_at_what_followed(subject: rs.Subject) -> None:
    prompts = repeats_of(subject, 32, 1, 0)
    heads = LongerHeads(int(prompts.settings["length"]))
    [prompt] = prompts
    for query in looked_at(prompts):
        where = query - heads.targets["on_followed"]
        assert prompt.tokens[where] == dict(zip(prompt.queries, prompt.answers, strict=True))[query]
        assert prompt.tokens[where - 1] == prompt.tokens[query]


def test_a_random_model_gets_no_recommendation(plan: ContextPlan) -> None:
    found = plan.recommendation
    assert found.setting is None
    assert "no better than chance" in found.why
    assert plan.sentences()[0].startswith("No recommendation: ")


def test_no_breaking_length_is_given_of_a_model_that_does_not_copy(plan: ContextPlan) -> None:
    assert not plan.copies
    assert plan.breaking_lengths[["predicted", "measured"]].isna().all(axis=None)
    assert plan.sentences()[-1].startswith("No breaking length: the model does not copy repeated tokens")


def test_copying_breaks_where_either_kind_of_head_loses_half() -> None:
    names = (AS_IT_IS, "linear", "yarn")
    plan = by_hand(dict.fromkeys(names, KNOWS), dict.fromkeys(names, KNOWS))
    right = {(AS_IT_IS, TO): 0.9, ("linear", TRAINED): 0.1, ("linear", TO): 0.0, ("yarn", TO): 0.3}
    attention = {
        (AS_IT_IS, TO): (0.7, 0.6),
        ("linear", TRAINED): (0.8, 0.2),
        ("linear", TO): (0.8, 0.1),
        ("yarn", TO): (0.6, 0.6),
    }
    cells = [(name, n) for name in names for n in (TRAINED, TO)]
    losses = [
        {
            "setting": name,
            "source": "repeats",
            "length": n,
            "prompt": k,
            "loss": 1.0,
            "accuracy": right.get((name, n), 0.9),
        }
        for name, n in cells
        for k in range(2)
    ]
    heads = []
    for name, n in cells:
        followed, previous = attention.get((name, n), (0.8, 0.6))
        for head, (one, other) in enumerate(((followed, 0.0), (0.0, previous), (0.1, 0.1))):
            about = {"setting": name, "length": n, "layer": 0, "head": head}
            heads.append(about | {"on_followed": one, "on_previous": other})
    rows = pd.DataFrame(heads)
    plan.tables |= {"losses": pd.concat([plan.losses, pd.DataFrame(losses)]), "heads": rows, "predicted": rows}
    assert plan.copying == {"on_followed": [(0, 0)], "on_previous": [(0, 1)]}
    found = plan.breaking_lengths.set_index("setting")
    assert found["predicted"].to_dict() == {AS_IT_IS: math.inf, "linear": TRAINED, "yarn": math.inf}
    assert found["measured"].to_dict() == {AS_IT_IS: math.inf, "linear": TRAINED, "yarn": TO}
    assert "for 2 of 3 settings" in plan._about_breaking()


def test_identical_settings_get_no_recommendation(subject: rs.Subject) -> None:
    """The loss of a model that knows something, under scalings that do nothing."""
    same = {name: [2.0, 2.1, 1.9, 2.05] for name in (AS_IT_IS, "linear", "ntk")}
    found = by_hand(same, same).recommendation
    assert found.setting is None
    assert "cannot be told apart with 4 prompts" in found.why


def by_hand(short: dict[str, list[float]], long: dict[str, list[float]], **changes: Any) -> ContextPlan:
    """A plan with these losses on text at training length and beyond, setting by setting."""
    rows = [
        {"setting": name, "source": "text", "length": n, "prompt": k, "loss": loss, "accuracy": 0.5}
        for n, losses in ((TRAINED, short), (TO, long))
        for name, several in losses.items()
        for k, loss in enumerate(several)
    ]
    settings = {
        "trained": TRAINED,
        "to": TO,
        "lengths": [TRAINED, TO],
        "scaling": list(short)[1:],
        "worse": 0.05,
    }
    settings |= {"vocabulary": 128, "model": "m", "fingerprint": "f", "prompts": 4, "rope": {}} | changes
    return ContextPlan(RunRecord("context-plan", settings), {"losses": pd.DataFrame(rows)})


KNOWS = [2.0, 2.1, 1.9, 2.05]


def raised(by: float, wobble: float = 0.01) -> list[float]:
    return [loss + by + wobble * (-1) ** k for k, loss in enumerate(KNOWS)]


def test_the_lowest_loss_is_recommended_where_it_is_lower_than_all_others() -> None:
    short = {AS_IT_IS: KNOWS, "linear": raised(0.02), "yarn": raised(0.01)}
    long = {AS_IT_IS: raised(3.0), "linear": raised(0.5), "yarn": raised(0.1, 0.0)}
    found = by_hand(short, long).recommendation
    assert found.setting == "yarn"
    assert f"{TO} tokens" in found.optimised
    assert f"at most 0.05 at {TRAINED}" in found.optimised
    left = by_hand(short, {AS_IT_IS: KNOWS, "linear": raised(0.5), "yarn": raised(0.3)})
    assert left.recommendation.setting == AS_IT_IS
    assert left.sentences()[0].startswith("Recommended: leave the angles as they are")


def test_what_costs_too_much_at_training_length_is_left_out() -> None:
    short = {AS_IT_IS: KNOWS, "linear": raised(0.4), "yarn": raised(0.01)}
    long = {AS_IT_IS: raised(3.0), "linear": KNOWS, "yarn": raised(0.5)}
    found = by_hand(short, long).recommendation
    assert found.setting == "yarn"
    assert "linear cost more at training length" in found.why
    assert by_hand(short, long, worse=1.0).recommendation.setting == "linear"
    dear = {AS_IT_IS: KNOWS, "linear": raised(0.4), "yarn": raised(0.9)}
    assert "every scaling costs more" in by_hand(dear, long).recommendation.why


def test_one_prompt_and_a_model_at_chance_say_nothing() -> None:
    one = {name: values[:1] for name, values in {AS_IT_IS: raised(3), "yarn": KNOWS}.items()}
    assert "one prompt" in by_hand(one, one).recommendation.why
    chance = math.log(128)
    lost = {AS_IT_IS: [chance + 0.1] * 4, "yarn": [chance + 0.2] * 4}
    low = {AS_IT_IS: raised(9), "yarn": KNOWS}
    assert "no better than chance" in by_hand(lost, low).recommendation.why


def test_noise_is_seldom_recommended() -> None:
    """Five settings that differ by noise alone, two hundred times: one in twenty at most is recommended."""
    draw, names = np.random.default_rng(5), (AS_IT_IS, "linear", "ntk", "yarn", "dynamic")
    wrong = 0
    for _ in range(200):
        base = 2 + 0.3 * draw.standard_normal(4)
        both = [{name: list(base + 0.02 * draw.standard_normal(4)) for name in names} for _ in range(2)]
        wrong += by_hand(*both).recommendation.setting is not None
    assert wrong <= 10


def test_a_plane_that_no_longer_tells_the_keys_apart_has_lost_its_gap() -> None:
    """A head of two planes: the first sets the key above the second, at training length alone; the other adds next to nothing."""
    plan = by_hand({AS_IT_IS: KNOWS}, {AS_IT_IS: KNOWS})
    heads = [
        {"setting": AS_IT_IS, "length": n, "layer": 0, "head": 0, "discrepancy": 2.0} for n in (TRAINED, TO)
    ]
    gaps = {
        TRAINED: {1: (1.95, 1.0), 2: (0.05, 0.01), 3: (0.5, -0.1)},
        TO: {1: (-0.2, -1.0), 2: (-1.0, -2.0), 3: (-1, -1)},
    }
    planes = [
        {
            "setting": AS_IT_IS,
            "length": n,
            "layer": 0,
            "head": 0,
            "frequency_id": f,
            "gap": gap,
            "least_gap": least,
        }
        for n, of in gaps.items()
        for f, (gap, least) in of.items()
    ]
    plan.tables |= {"heads": pd.DataFrame(heads), "planes": pd.DataFrame(planes)}
    assert list(plan.holding) == [(0, 0, 1)], "2 adds too little, 3 not in every prompt"
    assert plan.lost_gaps["lost"].tolist() == [0, 1]
    assert plan.lost_gaps["holding"].tolist() == [1, 1]


def test_changed_classes_are_counted_and_named() -> None:
    plan = by_hand({AS_IT_IS: KNOWS}, {AS_IT_IS: KNOWS})
    rows = [
        {"setting": AS_IT_IS, "length": n, "layer": 1, "head": h, "head_class": name}
        for n, classes in ((TRAINED, ["symbolic", "mixed", "symbolic"]), (TO, ["mixed", "mixed", "mixed"]))
        for h, name in enumerate(classes)
    ]
    plan.tables["heads"] = pd.DataFrame(rows)
    [row] = plan.changes.to_dict("records")
    assert (row["length"], row["before"], row["after"]) == (TO, "symbolic", "mixed")
    assert (row["changed"], row["heads"]) == (2, "1:0 1:2")


def test_a_run_goes_on_where_it_was_and_is_made_once(
    subject: rs.Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rotoscope.analysis.plan import context_plan

    how: dict[str, Any] = SMALL | {"sources": "repeats", "scaling": "linear", "out": tmp_path / "run"}
    read, seen = read_repeats, []

    def stops(*args: Any) -> Any:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return read(*args)

    monkeypatch.setattr(context_plan, "read_repeats", stops)
    with pytest.raises(KeyboardInterrupt):
        rs.plan.context(subject, **how)
    whole = rs.plan.context(subject, **how)
    assert len(seen) == 3 + 5, "seven readings, two of them finished before"
    pd.testing.assert_frame_equal(whole.losses, rs.plan.context(subject, **how | {"out": None}).losses)
    again = rs.plan.context(subject, **how)
    assert len(seen) == 8 + 7
    assert again.recommendation == whole.recommendation


def test_a_plan_is_a_file_that_scales_the_model_it_was_made_for(
    plan: ContextPlan, subject: rs.Subject, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    rs.plan.ContextFile.of(plan).write(file)
    found = rs.plan.load_context(file)
    assert (found.fingerprint, found.to, found.trained) == (subject.fingerprint, TO, TRAINED)
    shown = torch.arange(3, 103)[None]
    mine = rs.plan.scale(subject, found, "yarn")
    twin = scaled(subject, rope_scaling(subject.model, "yarn", TRAINED, TO), TO)
    with torch.no_grad():
        assert torch.equal(mine.model(shown).logits, twin.model(shown).logits)
    content = json.loads(file.read_text()) | {"recommended": "linear"}
    file.write_text(json.dumps(content))
    with torch.no_grad():
        told = rs.plan.scale(subject, file).model
        assert told.config.rope_parameters == content["scalings"]["linear"]["rope_parameters"]


def test_plans_that_are_not_for_this_model_or_damaged_are_refused(
    plan: ContextPlan, subject: rs.Subject, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    rs.plan.ContextFile.of(plan).write(file)
    stranger = rs.load((tiny("llama", seed=1, num_hidden_layers=2), word_tokenizer()), name="stranger")
    with pytest.raises(RunError, match=r"the plan was made for tiny \(.*another one .*make a plan of its own"):
        rs.plan.scale(stranger, file)
    with pytest.raises(RunError, match="recommends no scaling"):
        rs.plan.scale(subject, file)
    with pytest.raises(RunError, match="has no scaling 'longrope'"):
        rs.plan.scale(subject, file, "longrope")
    file.unlink()
    with pytest.raises(RunError, match="is not there"):
        rs.plan.load_context(tmp_path)
    rs.plan.ContextFile.of(plan).write(file)
    whole = json.loads(file.read_text())
    damages: list[Any] = [
        "{", "[]", "3", json.dumps(whole | {"scalings": 3}), json.dumps(whole | {"trained": "many"}),
        json.dumps(whole | {"recommended": "longrope"}), json.dumps(whole | {"more": 1}),
        json.dumps({key: value for key, value in whole.items() if key != "fingerprint"}),
        json.dumps(whole | {"scalings": {"linear": {"rope_parameters": {"rope_type": "linear", "factor": -1}, "max_position_embeddings": 3}}}),
        json.dumps(whole | {"scalings": {"linear": {"rope_parameters": {"rope_type": 4}, "max_position_embeddings": 3}}}),
        "x" * 2_000_000,
    ]  # fmt: skip
    for damage in damages:
        file.write_text(damage)
        with pytest.raises(RunError, match="is no context plan, or it is damaged"):
            rs.plan.load_context(file)
    file.write_text(json.dumps(whole | {"plan": "cache"}))
    with pytest.raises(RunError, match="a plan of another kind"):
        rs.plan.load_context(file)


def test_what_is_asked_for_must_be_longer_and_known(subject: rs.Subject) -> None:
    for changes, words in (
        ({"to": 16, "trained": None}, "trained on 32 tokens, so 16"),
        ({"scaling": "longrope"}, "unknown scaling 'longrope'; choose linear, ntk, yarn or dynamic"),
        ({"sources": ("lookup",)}, "judged by repeats and text"),
        ({"passage": 12}, "--passage means nothing for plan context"),
        ({"lengths": (500,)}, "up to the one that is asked for, 128"),
        ({"lengths": (20,)}, "beyond the training length of 32"),
    ):
        with pytest.raises(RotoscopeError) as problem:
            rs.plan.context(subject, **SMALL | changes)
        assert words in str(problem.value)


def test_lengths_are_doublings_unless_said_otherwise(subject: rs.Subject) -> None:
    wanted = rs.settings.ContextSettings(to=200)
    assert wanted.all_lengths(32) == (32, 64, 128, 200)
    assert rs.settings.ContextSettings(to=200, lengths=(50,)).all_lengths(32) == (32, 50, 200)


def test_the_page_and_the_figures_show_losses_by_length(plan: ContextPlan) -> None:
    tab = rs.report.run_payload(plan)["tabs"]["plan"]
    assert [panel["title"] for panel in tab["panels"]] == ["Loss on repeats", "Loss on text"]
    assert {curve["name"] for curve in tab["panels"][0]["curves"]} >= {"as it is", "yarn"}
    assert tab["panels"][0]["curves"][0]["x"] == [32, 64, 128]
    assert tab["y"] == "loss"
    assert tab["said"] == plan.sentences()
    assert [name for name, _ in figures_of(plan)] == ["context_losses", "context_classes"]
