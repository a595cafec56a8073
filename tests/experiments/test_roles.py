"""What layers do: attention, arrival and flow against plain computations, and the claims on the embedded models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import ModelError, TaskError
from rotoscope.experiments.roles.result import beside_table_1, find_geometry, frequency_use
from rotoscope.experiments.roles.run import (
    HELD_OUT,
    Probes,
    _attention,
    attention_of,
    blocked,
    farthest_right,
    find_roles,
    ideal_hop,
    trace,
)
from rotoscope.experiments.theory.statement import index_function, retrieval_function
from rotoscope.lab.checkpoints import sequences_for
from rotoscope.lab.gptj import GPTJ, GPTJShape
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Depths

BOTH = pytest.mark.parametrize("task", [pytest.param("number", marks=pytest.mark.slow), "letter"])


def small() -> tuple[object, None]:
    """An untrained model that says which task it is for."""
    shape = GPTJShape(len(rs.tasks.letter(1).vocabulary), layers=2, heads=2, width=32, rotary=8, nope=(1,))
    model = GPTJ.initialise(shape, 3).to_transformers()
    model.config.rotoscope = {"task": "letter"}
    return model, None


@pytest.fixture(
    scope="module",
    params=[pytest.param((120, 3000), id="many", marks=pytest.mark.slow)],
)
def found(request: pytest.FixtureRequest) -> dict[str, rs.experiments.Roles]:
    inputs, fitted = request.param
    return {task: find_roles(task, inputs=inputs, fitted=fitted, device="cpu") for task in ("number", "letter")}


@BOTH
def test_attention_is_the_models_own(task: str) -> None:
    subject = rs.load(task, device="cpu")
    samples = sequences_for(subject.model.config, 3, first=HELD_OUT)
    own = subject.model(samples.tokens, output_attentions=True).attentions
    weights = attention_of(HeadReader(subject.model), samples.tokens)
    for layer, expected in enumerate(own):
        torch.testing.assert_close(weights[layer], expected, atol=2e-5, rtol=1e-4)


@BOTH
def test_the_ideal_composition_is_that_of_the_functions(task: str) -> None:
    """Index or Retrieval applied layer by layer to token ids, against where `ideal_hop` says the state is."""
    samples = rs.tasks.number(80) if task == "number" else rs.tasks.letter(80)
    for k in range(len(samples)):
        ids, hops = samples.tokens[k].tolist(), int(samples.hops[k])
        if task == "letter":  # retrieval is defined on proper inputs: keep the path and its own pairs only
            path = sorted(samples.path[k, : hops + 1].tolist())
            ids = [ids[p] for p in path]
            places = {p: i for i, p in enumerate(path)}
        else:
            places = {p: p for p in range(len(ids))}
        state = list(ids)
        for layer in range(6):
            for step in range(hops):
                ahead = ideal_hop(task, layer, hops, step)
                target = places[int(samples.path[k, step + ahead])]
                assert state[places[int(samples.path[k, step])]] == ids[target], (layer, step)
            state = (
                index_function(torch.tensor([state]), 120)[0].tolist()
                if task == "number"
                else retrieval_function(state, 8, 8)
            )


@pytest.mark.slow
@BOTH
def test_blocking_against_plain_runs(task: str) -> None:
    """Blocked from layer 0 the last token is alone in the world; blocked from no layer it answers as ever."""
    subject = rs.load(task, device="cpu")
    samples = sequences_for(subject.model.config, 60, hops=(2,), first=HELD_OUT)
    right = blocked(Depths(HeadReader(subject.model)), samples, 0)
    with torch.no_grad():
        alone = subject.model(samples.tokens[:, -1:]).logits[:, -1].argmax(-1)
        whole = subject.model(samples.tokens).logits[:, -1].argmax(-1)
    assert right[0] == pytest.approx(float((alone == samples.answer).float().mean()))
    assert right[-1] == pytest.approx(float((whole == samples.answer).float().mean()))


@pytest.mark.slow
def test_blocking_position_by_position() -> None:
    """The blocks called one by one, with a mask that hides everything but itself from one position of the path."""
    model = rs.load("number", device="cpu").model
    samples = sequences_for(model.config, 24, hops=(3,), first=HELD_OUT)
    n, lowest = samples.length, torch.finfo(torch.float32).min
    causal = torch.full((n, n), lowest).triu(1).repeat(24, 1, 1, 1)
    alone = causal.clone()
    for row, here in enumerate(samples.path[:, 1].tolist()):
        alone[row, 0, here] = lowest
        alone[row, 0, here, here] = 0.0
    expected = []
    with torch.no_grad():
        for first in range(13):
            x = model.transformer.wte(samples.tokens)
            for layer, block in enumerate(model.transformer.h):
                mask = alone if layer >= first else causal
                x = block(x, attention_mask=mask, position_ids=torch.arange(n)[None])[0]
            answer = model.lm_head(model.transformer.ln_f(x))[:, -1].argmax(-1)
            expected.append(float((answer == samples.answer).float().mean()))
    assert blocked(Depths(HeadReader(model)), samples, 1) == pytest.approx(expected)
    assert expected[0] < 0.5 < expected[-1]


@BOTH
def test_the_answer_arrives_in_hop_order(found: dict[str, rs.experiments.Roles], task: str) -> None:
    one = found[task]
    arrives = one.answer_arrives
    assert one.in_hop_order()
    assert arrives.is_monotonic_increasing
    assert arrives[1] >= 1
    if task == "number":
        assert arrives.is_unique
        turned = rs.dynamics("number").pure_from().set_index("layer")["head_class"]
        assert (
            arrives[4] - 1 <= turned.index[turned == "symbolic"].min()
        )  # before the first symbolic head has acted


def test_named_heads_earn_their_names(found: dict[str, rs.experiments.Roles]) -> None:
    number, letter = found["number"].table().set_index("layer"), found["letter"].table().set_index("layer")
    assert (number.loc[number["role"] == "Index", "on_pointed"] >= 0.9).all()
    assert (number["role"] == "Index").sum() >= 2
    assert letter.loc[0, "role"] == "Retrieval"
    assert letter.loc[0, "on_pointed"] >= 0.9
    for table in (number, letter):
        assert (table.loc[table["role"] == "none", ["on_self", "on_pointed"]] < 0.9).all(axis=None)
        assert (table["along_path"] <= 1 + 1e-5).all()


def test_attention_shares_by_hand() -> None:
    subject = rs.load("letter", device="cpu")
    samples = sequences_for(subject.model.config, 40, seed=0, first=HELD_OUT)
    reader = HeadReader(subject.model)
    table = _attention(reader, samples).set_index(["layer", "head", "hops", "path_index"])
    weights = attention_of(reader, samples.tokens)
    for layer, hops, step, name, ahead in (
        (0, 2, 0, "on_pointed", 1),
        (2, 3, 1, "on_2_ahead", 2),
        (9, 4, 0, "on_self", 0),
    ):
        rows = [k for k in range(40) if int(samples.hops[k]) == hops]
        mean = np.mean(
            [float(weights[layer, k, 0, samples.path[k, step], samples.path[k, step + ahead]]) for k in rows]
        )
        assert table.loc[(layer, 0, hops, step), name] == pytest.approx(mean, abs=1e-5)


@BOTH
def test_what_can_be_read_and_what_an_untrained_model_would_give(
    found: dict[str, rs.experiments.Roles], task: str
) -> None:
    flow = found[task].flow
    final = flow[(flow["layer"] == 12) & (flow["path_index"] == 0) & (flow["ahead"] == flow["hops"])]
    assert (final["accuracy"] > 0.95).all()
    assert (final["null_accuracy"] < 0.3).all()
    before = flow[(flow["layer"] == 0) & (flow["ahead"] == 0)]
    assert (before["accuracy"] > 0.95).all()  # an embedding is its own token
    end = found[task].agreement[lambda t: t["layer"] == 12]
    assert (end["agreement"] > 0.9).all()
    assert end["null_agreement"].mean() < 0.3


def test_probes_read_what_was_written() -> None:
    """A model that does nothing: its states are its embeddings, so the token itself is read and nothing further on."""
    samples = rs.tasks.letter(600)
    model = GPTJ.initialise(GPTJShape(len(samples.vocabulary), layers=1, width=160, rotary=160), 0)
    for name, weight in model.weights.items():
        if name.endswith(("out_proj.weight", "fc_out.weight")):
            weight.zero_()
    depths = Depths(HeadReader(model.to_transformers()))
    judged = Probes.fit(depths, samples).judge(depths, rs.tasks.letter(300, first=5000))
    assert (judged.flow.query("ahead == 0")["accuracy"] > 0.99).all()
    assert (judged.flow.query("ahead == hops - path_index and hops == 1")["accuracy"] < 0.3).all()


def test_probes_are_judged_on_sequences_they_were_not_fitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[torch.Tensor]] = {"fit": [], "judge": []}
    fit, judge = Probes.fit.__func__, Probes.judge

    def fitting(cls, depths, samples):
        seen["fit"].append(samples.tokens)
        return fit(cls, depths, samples)

    def judging(self, depths, samples):
        seen["judge"].append(samples.tokens)
        return judge(self, depths, samples)

    monkeypatch.setattr(Probes, "fit", classmethod(fitting))
    monkeypatch.setattr(Probes, "judge", judging)
    find_roles(small(), inputs=8, fitted=40)
    assert [len(tokens) for tokens in seen["fit"]] == [40, 40]  # the model, and its untrained null
    assert [len(tokens) for tokens in seen["judge"]] == [8, 8]
    fitted = {tuple(row) for row in seen["fit"][0].tolist()}
    assert not fitted & {tuple(row) for row in seen["judge"][0].tolist()}


def test_farthest_right_by_hand() -> None:
    right = torch.tensor([[True, False, True], [True, False, False], [False, False, False]])
    assert farthest_right(right).tolist() == [2, 0, -1]


def test_roles_are_saved_and_read_back(tmp_path: Path) -> None:
    written, again = (find_roles(small(), inputs=8, fitted=40, out=out) for out in (tmp_path / "run", None))
    for name, table in rs.open(tmp_path / "run").tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name])
        pd.testing.assert_frame_equal(table, written.tables[name])


@pytest.mark.slow
def test_one_input_of_ones_own() -> None:
    one = rs.tasks.letter(8, first=HELD_OUT)[6]
    shown = trace("letter", " ".join(one.tokens), fitted=2000, device="cpu")
    assert shown.sequence == one
    assert shown.answered == one.answer
    cells = shown.cells.set_index(["layer", "position"])
    last = len(one.tokens) - 1
    assert cells.loc[(0, last), "token"] == one.tokens[-1]
    assert cells.loc[(12, last), "token"] == one.answer
    assert shown.attention.shape == (12, 1, 17, 17)


@pytest.mark.slow
def test_inputs_of_ones_own_that_are_none() -> None:
    with pytest.raises(TaskError, match="'z9' is no token of the letter task"):
        trace("letter", "z9 az", device="cpu", fitted=100)
    with pytest.raises(TaskError, match="points before"):
        trace("number", "a b 5", device="cpu", fitted=100)


def test_models_of_other_kinds_are_refused(smollm2: rs.Subject) -> None:
    with pytest.raises(ModelError, match="GPT-J models, found one of type 'llama'"):
        find_roles(smollm2)


def test_frequency_use_by_hand() -> None:
    rows = [
        {"layer": 0, "head": 0, "frequency_id": f, "angle": 1 / f, "max_logit": m, "prompt": p}
        for f, pair in ((1, (1.0, 3.0)), (2, (0.0, 0.0)))
        for p, m in enumerate(pair)
    ]
    use = frequency_use(pd.DataFrame(rows), scaling=0.5)
    assert use["max_logit"].tolist() == [2.0, 0.0]
    assert use["weight"].tolist() == pytest.approx([np.e**2 / (np.e**2 + 1), 1 / (np.e**2 + 1)])
    assert use["product_weight"][1] == pytest.approx(1 / (np.e**4 + 1))


@pytest.mark.slow
def test_the_number_model_turns_fast_and_the_letter_model_slowly(tmp_path: Path) -> None:
    number, letter = (
        find_geometry(task, inputs=40, device="cpu", out=tmp_path / task) for task in ("number", "letter")
    )
    fast, slow = beside_table_1(number), letter.weighted_ids()
    assert (fast["dominant_id"][:5] <= 2).all()
    assert (slow["product_weighted_id"][:5] > 20).all()
    assert fast["paper_id"].tolist()[:4] == [1, 2, 2, 2]
    vectors = number.vectors.query("layer == 1")
    size = np.hypot(vectors["re"], vectors["im"])
    keys = vectors[vectors["kind"] == "key"]
    direction = np.hypot((keys["re"] / size).mean(), (keys["im"] / size).mean())
    assert direction > 0.95  # all keys alike, as in T_Index
    integers = vectors[(vectors["kind"] == "query") & vectors["token"].str.isdigit()].sort_values("token_id")
    angle = np.unwrap(np.arctan2(integers["im"], integers["re"]))
    turn = np.polyfit(integers["token"].astype(int), angle, 1)[0]
    assert abs(abs(turn) - 1.0) < 0.1  # and queries of t turned by t angles


def test_vectors_are_those_of_the_projections() -> None:
    """Layer 0 by hand: embedding, norm, projection, and the two neighbouring dimensions of the dominant plane."""
    model, _ = small()
    found = find_geometry(model, inputs=20)
    vectors = found.vectors.query("layer == 0").set_index(["head", "kind", "token_id"])
    block = model.transformer.h[0]
    with torch.no_grad():
        inside = block.ln_1(model.transformer.wte.weight)
        projected = {"query": block.attn.q_proj(inside), "key": block.attn.k_proj(inside)}
    for (head, kind, token), row in vectors.iterrows():
        first = 16 * head + 2 * (int(row["frequency_id"]) - 1)
        expected = projected[kind][token, first : first + 2].tolist()
        assert [row["re"], row["im"]] == pytest.approx(expected, abs=1e-6)
        assert row["spread"] == pytest.approx(0.0, abs=1e-6)
    assert {head for head, _, _ in vectors.index} == {0, 1}
