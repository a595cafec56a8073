"""Known heads: constructed ones are found, the definitions hold on every architecture, and random models have none."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as tf

import rotoscope as rs
from rotoscope.experiments.known_heads import known_table
from rotoscope.scores.attention import KNOWN, LOOKED_AT, share_on, targets
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

module = import_module("rotoscope.experiments.known_heads")  # the package has a function of that name
SYMBOLS, ROTATING, WIDTH = 16, 16, 32
"""Of the constructed model: words, rotating and all dimensions of a head."""
REPEATED = [[0, *order, *order] for order in ([3, 8, 5, 11, 2, 9, 14], [7, 1, 12, 4, 13, 6, 10])]


def constructed(heads: int = 2) -> Any:
    """Two layers of heads, two with known jobs: previous token and sink, then induction, which answers, and duplicate token.

    The residual stream holds the token, the token before (written by head 0:0) and the answer (written by 1:0). Further heads
    do next to nothing.
    """
    config = tf.PhiConfig(
        vocab_size=SYMBOLS, hidden_size=heads * WIDTH, num_hidden_layers=2, num_attention_heads=heads, intermediate_size=4,
        partial_rotary_factor=0.5, max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = tf.PhiForCausalLM(config).eval()
    token, before, answer = (slice(k * SYMBOLS, (k + 1) * SYMBOLS) for k in range(3))
    one, sharp, half = torch.eye(SYMBOLS), 20.0, ROTATING // 2
    with torch.no_grad():
        for (
            name,
            weight,
        ) in model.named_parameters():  # nothing but what follows, and noise by which planes are told apart
            weight.copy_(
                torch.ones_like(weight) if "layernorm.weight" in name else 1e-5 * torch.randn_like(weight)
            )
        model.model.embed_tokens.weight[:, token] = one
        model.lm_head.weight[:, answer] = one
        first, second = (layer.self_attn for layer in model.model.layers)
        angles = 10000.0 ** -(torch.arange(half) / half)
        first.q_proj.bias[:ROTATING] = sharp * torch.cat((angles.cos(), -angles.sin()))  # one position back
        first.k_proj.bias[:half] = sharp
        first.v_proj.weight[:SYMBOLS, token] = one
        first.dense.weight[before, :SYMBOLS] = one / 8
        contents = (
            slice(ROTATING, WIDTH),
            slice(WIDTH + ROTATING, 2 * WIDTH),
        )  # what does not rotate, of both heads
        first.q_proj.bias[WIDTH + ROTATING] = sharp  # the first word is symbol 0
        first.k_proj.weight[contents[1], token] = 4 * one
        for inside, looked_at in zip(contents, (before, token), strict=True):
            second.q_proj.weight[inside, token] = 4 * one
            second.k_proj.weight[inside, looked_at] = 4 * one
        second.v_proj.weight[:SYMBOLS, token] = one
        second.dense.weight[answer, :SYMBOLS] = one
    return model


def test_constructed_heads_are_found() -> None:
    found = rs.known_heads(constructed(), tokens=REPEATED).set_index(["layer", "head"])
    assert found.loc[(0, 0), "previous_token"] == pytest.approx(1, abs=1e-2)
    assert found.loc[(0, 1), "sink"] == pytest.approx(1, abs=1e-2)
    assert found.loc[(1, 0), ["induction", "copying"]].tolist() == pytest.approx([1, 1], abs=1e-2)
    assert found.loc[(1, 1), "duplicate_token"] == pytest.approx(
        0.5, abs=1e-2
    )  # the rest is on the token itself
    assert found["delimiter"].isna().all()  # no tokenizer, so nobody knows what delimits
    others = found[["previous_token", "duplicate_token", "induction", "copying"]]
    largest = others.stack().nlargest(5).index.tolist()
    assert {place[:2] for place in largest[:4]} == {(0, 0), (1, 0), (1, 1)}
    assert others.stack()[largest[4]] < 0.2


def test_an_attention_of_one_kind_is_of_that_kind_alone() -> None:
    tokens, delimiters = torch.tensor(REPEATED), torch.zeros(2, 15, dtype=torch.bool)
    delimiters[:, 4] = True
    wanted = targets(tokens, delimiters)
    for k, name in enumerate(LOOKED_AT):
        asked = wanted[k].any(-1)
        attention = torch.where(asked[..., None], wanted[k], torch.eye(15, dtype=torch.bool)).float()
        found = share_on(attention[:, None], wanted)[:, :, 0] / wanted.any(-1).sum(-1)
        assert torch.equal(found[k], torch.ones(2)), name
        elsewhere = (
            wanted[k] & wanted
        )  # one token may be what two kinds look for: the one before a delimiter's query
        assert torch.equal(found, elsewhere.sum((-1, -2)) / wanted.any(-1).sum(-1)), name


def by_hand(model: Any, ids: list[list[int]], delimits: set[int]) -> list[dict[str, float]]:
    """The definitions as they are written, with loops over the model's own attention."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(torch.tensor(ids), use_cache=False, output_attentions=True)
    rows = []
    for layer, weights in enumerate(out.attentions):
        for head in range(weights.shape[1]):
            means: dict[str, list[float]] = {name: [] for name in KNOWN}
            for b, prompt in enumerate(ids):
                found: dict[str, list[float]] = {name: [] for name in KNOWN}
                for i in range(2, len(prompt)):
                    row = weights[b, head, i].tolist()
                    same = [j for j in range(1, i) if prompt[j] == prompt[i]]
                    after = [j for j in range(1, i) if prompt[j - 1] == prompt[i]]
                    marks = [j for j in range(1, i) if prompt[j] in delimits]
                    for name, there in zip(
                        ("previous_token", "duplicate_token", "induction", "delimiter", "sink"),
                        ([i - 1], same, after, marks, [0]),
                        strict=True,
                    ):
                        found[name] += [sum(row[j] for j in there)] if there else []
                    following = prompt[i + 1] if i + 1 < len(prompt) else None
                    copies = [j for j in after if prompt[j] == following]
                    if copies:
                        most = max(range(len(row)), key=lambda j: row[j])
                        said = int(out.logits[b, i].argmax()) == following
                        found["copying"].append(float(most in copies and said))
                for name, values in found.items():
                    means[name] += [float(np.mean(values))] if values else []
            row_means = {name: float(np.mean(values)) if values else np.nan for name, values in means.items()}
            rows.append({"layer": layer, "head": head} | row_means)
    return rows


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2", "phi", "gptj", "deepseek_v3", "llama4"])
def test_scores_are_those_of_the_models_own_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, soft-caps, learned sinks, grouped and wide heads; a few queries at a time."""
    model, words = tiny(name), [9, 5, 20, 5, 31, 2, 9, 5, 7, 20, 5, 31]
    ids = [[1, *words, *words[:5]], [1, *words[::-1], *words[:5]]]
    monkeypatch.setattr(module, "MOST_WEIGHTS", 2 * 4 * 18 * 5)
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["w20"]})
    found = rs.known_heads((model, tokenizer), tokens=ids)
    expected = pd.DataFrame(by_hand(model, ids, {0, 1, 2, 20}))
    assert found["delimiter"].notna().all()
    pd.testing.assert_frame_equal(found[expected.columns], expected, atol=1e-5, check_dtype=False)


def test_copying_needs_the_model_to_say_it() -> None:
    model = constructed()
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.roll(1, 0))
    found = rs.known_heads(model, tokens=REPEATED)
    assert found["copying"].max() == 0
    assert found["induction"].max() > 0.99


def test_text_and_its_delimiters() -> None:
    subject = (tiny("llama"), word_tokenizer())
    text = "w3 w4 w5 w6 w3 w4 w5"
    found = rs.known_heads(subject, text=[text, text, "w7 w8 w7 w8"])
    pd.testing.assert_frame_equal(
        found, rs.known_heads(subject, text=[text, "w7 w8 w7 w8"])
    )  # two samples, not three
    assert found["delimiter"].isna().all()
    assert all(map(module._delimits, (" ,", "\n ", "...")))
    assert not any(map(module._delimits, (" the", " ", "a.", "3", "$")))


def test_random_punctuation_delimits_nothing() -> None:
    subject = rs.load((tiny("llama"), word_tokenizer()))
    subject.tokenizer.add_special_tokens({"additional_special_tokens": [f"w{k}" for k in range(20, 60)]})
    prompts = rs.tasks.repeats(subject, 8, 2)
    special = rs.tasks.Prompts("repeats", tuple(rs.Prompt((20, *p.tokens[1:], 21, 22), (9,)) for p in prompts))
    assert rs.known_heads(subject, special)["delimiter"].isna().all()
    assert rs.known_heads(subject, tokens=[p.tokens for p in special])["delimiter"].notna().all()


def test_random_tokens_without_a_tokenizer() -> None:
    found = rs.known_heads(tiny("llama", max_position_embeddings=40))
    assert len(found) == 12
    assert found[["previous_token", "duplicate_token", "induction", "sink"]].notna().all(axis=None)


@pytest.mark.parametrize("name", ["number", "letter"])
def test_embedded_models(name: str) -> None:
    found = rs.known_heads(name)
    assert len(found) == 12
    assert found["delimiter"].isna().all()
    assert found.drop(columns=[f"delimiter{end}" for end in ("", "_low", "_high")]).notna().all(axis=None)


@pytest.fixture(scope="module", autouse=True)
def _few_prompts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COUNT", 3)
        yield


@pytest.fixture(scope="module")
def profiled() -> rs.Profile:
    subject = rs.load((tiny("llama", sharp=1.0), word_tokenizer()), name="random")
    prompts = rs.tasks.repeats(subject, 6, 2)
    return rs.profile(subject, prompts, known=True, null_draws=2, examples=False)


def test_a_random_model_has_no_known_heads(profiled: rs.Profile) -> None:
    table = profiled.known_table()
    assert set(table["known_type"]) == set(KNOWN) - {"delimiter"}  # its tokenizer has no words for prose
    assert (table["of_type"] == 0).all()
    assert set(table["verdict"]) == {"no verdict"}
    assert set(table["reason"]) == {"no head of this kind"}
    assert profiled.null_known_heads.groupby("draw").size().tolist() == [12, 12]
    assert profiled.known_overview()["strongest"].eq("").all()


def test_noise_in_place_of_keys_has_scores_of_its_own() -> None:
    subject = rs.load((tiny("llama", num_hidden_layers=1), word_tokenizer()))
    found = rs.profile(
        subject, rs.tasks.repeats(subject, 6, 1), known=True, null="gaussian", null_draws=2, examples=False
    )
    draws = [rows["previous_token"].tolist() for _, rows in found.null_known_heads.groupby("draw")]
    assert len({*map(tuple, draws), tuple(found.known_heads["previous_token"])}) == 3


def test_known_heads_of_a_profile_are_kept(profiled: rs.Profile, tmp_path: Path) -> None:
    again = rs.open(profiled.save(tmp_path / "run"), rs.Profile)
    pd.testing.assert_frame_equal(again.known_table(), profiled.known_table())
    assert len(again.heads.merge(again.known_heads, on=["layer", "head"])) == 12


def crossed(layers: int, heads: int, classes: list[str], kind: np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame]:
    place = pd.DataFrame(
        [(at, head) for at in range(layers) for head in range(heads)], columns=["layer", "head"]
    )
    scores = place.assign(**dict.fromkeys(KNOWN, 0.0) | {"induction": np.where(kind, 0.9, 0.1)})
    return place.assign(head_class=classes), scores


def drawn(null: pd.DataFrame, draws: int = 19) -> pd.DataFrame:
    """The same scores in every draw of a null."""
    return pd.concat([null.assign(null_name="random", draw=draw) for draw in range(draws)], ignore_index=True)


def test_shuffled_classes_are_counted_exactly() -> None:
    """Twin: classes really shuffled within layers."""
    dice = np.random.default_rng(0)
    classes = dice.choice(["positional", "symbolic", "mixed"], 40, p=[0.3, 0.3, 0.4])
    kind = dice.random(40) < np.repeat([0.1, 0.5, 0.7, 0.2], 10)
    heads, scores = crossed(4, 10, list(classes), kind)
    found = (
        known_table(heads, scores, drawn(scores.iloc[:1]))
        .set_index(["known_type", "head_class"])
        .loc["induction"]
    )
    dealt = np.array(
        [np.concatenate([dice.permutation(layer) for layer in classes.reshape(4, 10)]) for _ in range(4000)]
    )
    for name, row in found.iterrows():
        counts = ((dealt == name) & kind).sum(1)
        assert row["expected"] == pytest.approx(counts.mean(), abs=0.05)
        assert row["heads"] == ((classes == name) & kind).sum()
        assert row["low"] == pytest.approx(np.quantile(counts, 0.025), abs=1)
        assert row["high"] == pytest.approx(np.quantile(counts, 0.975), abs=1)


def test_a_class_that_holds_the_kind_is_beyond_shuffling_and_depth_alone_is_not() -> None:
    null = drawn(crossed(1, 1, ["mixed"], np.zeros(1, bool))[1])
    kind = np.tile(np.arange(10) < 5, 4)
    heads, scores = crossed(4, 10, list(np.where(kind, "symbolic", "mixed")), kind)
    found = known_table(heads, scores, null).set_index(["known_type", "head_class"])
    induction = found.loc[("induction", "symbolic")]
    assert (induction["heads"], induction["verdict"]) == (20, "beyond the null")
    assert induction["expected"] == pytest.approx(10)
    assert found.loc[("induction", "mixed"), "heads"] == 0
    assert found.loc[("induction", "mixed"), "verdict"] == "beyond the null"
    few = known_table(heads, scores, null[null["draw"] < 2]).set_index(["known_type", "head_class"])
    assert few.loc[("induction", "symbolic"), "verdict"] == "undecided"
    assert (
        few.loc[("induction", "symbolic"), "reason"]
        == "2 draws of the null: a verdict of beyond the null takes 19"
    )
    deep = np.repeat([False, True], 20)
    heads, scores = crossed(4, 10, list(np.where(deep, "symbolic", "mixed")), deep)
    assert set(known_table(heads, scores, null)["verdict"]) == {"no verdict"}
    assert set(known_table(heads, scores, null.iloc[:0])["reason"]) == {
        "no null: a random model might score as much"
    }


def test_what_the_null_reaches_is_no_kind() -> None:
    kind = np.tile(np.arange(10) < 5, 4)
    heads, scores = crossed(4, 10, ["mixed"] * 40, kind)
    strong = drawn(crossed(1, 2, ["mixed"] * 2, np.ones(2, bool))[1])
    table = known_table(heads, scores, strong)
    assert (table["of_type"] == 0).all()
