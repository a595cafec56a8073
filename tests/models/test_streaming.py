"""Heads that stream give what they give when the keys they forget are literally dropped."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
import transformers as tf
from transformers import AttentionInterface
from transformers.masking_utils import eager_mask

from rotoscope.errors import ModelError
from rotoscope.models.interventions import Gate, gated
from rotoscope.models.partial_rope import stop_for_good
from rotoscope.models.reader import HeadReader
from rotoscope.models.sites import attending_by, registered, replaced
from rotoscope.models.streaming import Streaming, mixed, stream, streaming
from tests.tiny_models import ARCHITECTURES, tiny, tokens, typical_first

WINDOW, SINKS, SHOWN = 3, 2, tokens(1, 14)
SOME = frozenset({(0, 1), (1, 0), (2, 0), (2, 1)})


def answers(model: Any, shown: torch.Tensor | None = None, **how: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(SHOWN if shown is None else shown, use_cache=False, **how).logits


def dropped(plan: Streaming, layer: int, head: int, here: int, keys: list[int]) -> list[int]:
    """What is left of the keys of a query, one by one."""
    if (layer, head) not in plan.heads:
        return keys
    if plan.context is None:
        return [key for key in keys if key < plan.sinks or here - key < plan.window]
    return [key for key in keys if key < plan.sinks or key >= plan.context - plan.window or here < plan.context]


def literal(plan: Streaming, layers: dict[int, int], module: Any, query: Any, key: Any, value: Any, mask: Any,
            scaling: float | None = None, softcap: float | None = None, s_aux: Any = None, **_: Any) -> Any:  # fmt: skip
    """Attention head by head and query by query, over a list of keys from which some were taken out."""
    batch, heads, n, d = query.shape
    group = heads // key.shape[1]
    output = torch.zeros(batch, n, heads, value.shape[-1])
    for b in range(batch):
        for head in range(heads):
            for here in range(n):
                seen = (
                    (mask[b if len(mask) > 1 else 0, 0, here, : key.shape[2]] > -1e9).nonzero()[:, 0].tolist()
                )
                left = dropped(plan, layers[id(module)], head // group, here, seen)
                logits = (
                    key[b, head // group, left]
                    @ query[b, head, here]
                    * (d**-0.5 if scaling is None else scaling)
                )
                if softcap is not None:
                    logits = softcap * torch.tanh(logits / softcap)
                if s_aux is not None:
                    logits = torch.cat((logits, s_aux[head][None]))
                weights = logits.softmax(0)[: len(left)]
                output[b, here, head] = weights @ value[b, head // group, left]
    return output, None


def with_keys_dropped(model: Any, reader: HeadReader, plan: Streaming) -> torch.Tensor:
    layers = {id(site.module): site.layer for site in reader.sites}
    if hasattr(reader.sites[0].module, "_attn"):
        with ExitStack() as stack:
            for site in reader.sites:

                def attend(
                    query: Any, key: Any, value: Any, mask: Any = None, module: Any = site.module
                ) -> Any:
                    n = query.shape[2]
                    mask = torch.full((1, 1, n, n), -1e30).triu(1)
                    scale = 1.0 / float(module.scale_attn)
                    return literal(plan, layers, module, query, key, value, mask, scale)[0].transpose(
                        1, 2
                    ), None

                stack.enter_context(replaced(site.module, "_attn", attend))
            return answers(model)

    def attend_literally(*args: Any, **kwargs: Any) -> Any:
        return literal(plan, layers, *args, **kwargs)

    configs = {id(c): c for c in (model.config, *(site.module.config for site in reader.sites))}
    with ExitStack() as stack:
        name = stack.enter_context(registered(attend_literally, eager_mask))
        for config in configs.values():
            stack.enter_context(attending_by(config, name))
        return answers(model)


@pytest.mark.parametrize("context", [None, 7])
@pytest.mark.parametrize(
    "name", typical_first(name for name in ARCHITECTURES if name not in ("llama yarn", "llama-3 scaling"))
)
def test_streaming_is_dropping_keys(name: str, context: int | None) -> None:
    model = tiny(name)
    reader = HeadReader(model)
    plain = answers(model)
    plan = Streaming(SOME, WINDOW, SINKS, context)
    expected = with_keys_dropped(model, reader, plan)
    with streaming(reader, plan):
        found = answers(model)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-4)
    assert not torch.allclose(found, plain, atol=1e-4)
    assert torch.equal(answers(model), plain)  # and it is left as it was


def test_nobody_streaming_changes_nothing() -> None:
    model = tiny("llama")
    reader = HeadReader(model)
    with streaming(reader, Streaming(frozenset(), WINDOW, SINKS)):
        torch.testing.assert_close(answers(model), answers(model))
        found = answers(model)
    torch.testing.assert_close(found, answers(model), atol=1e-6, rtol=1e-5)


def test_a_window_that_holds_everything_forgets_nothing() -> None:
    model = tiny("gemma2")
    with streaming(HeadReader(model), Streaming(SOME, 1000, 0)):
        found = answers(model)
    torch.testing.assert_close(found, answers(model), atol=1e-6, rtol=1e-5)


LONG = tokens(2, 24, seed=4)
"""Three times the window of the layers that have one."""
WINDOWED = ("mistral", "gemma2", "gemma3", "gpt_oss", "cohere2", "llama4")


def in_steps(model: Any, shown: torch.Tensor, sizes: list[int], past: Any = None, **how: Any) -> torch.Tensor:
    """Some tokens after the others, a cache holding what came before; masks are of all tokens so far."""
    steps, end = [], 0
    seen = how.pop("attention_mask", torch.ones_like(shown))
    with torch.no_grad():
        for size in sizes:
            begin, end = end, end + size
            output = model(
                shown[:, begin:end], attention_mask=seen[:, :end], past_key_values=past, use_cache=True, **how
            )
            past = output.past_key_values
            steps.append(output.logits)
    return torch.cat(steps, dim=1)


CACHES: dict[str, Any] = {
    "its own": lambda model: None,
    "keeps everything": lambda model: tf.DynamicCache(),
    "of a fixed size": lambda model: tf.StaticCache(model.config, max_cache_len=40),
}


@pytest.mark.parametrize("context", [None, 7])
@pytest.mark.parametrize("name", ["llama", "gptj", *typical_first(WINDOWED)])
def test_one_token_at_a_time_with_a_cache(name: str, context: int | None) -> None:
    """A head that streams while text is generated sees what it sees in one pass, also where a layer has a window of its own."""
    model = tiny(name)
    known, plain = set(AttentionInterface._global_mapping), answers(model, LONG)
    undo = stream(HeadReader(model), Streaming(SOME, WINDOW, SINKS, context))
    whole = answers(model, LONG)
    for sizes in ([1] * 24, [10, *[1] * 14], [10, 5, 9]):
        torch.testing.assert_close(in_steps(model, LONG, sizes), whole, atol=2e-5, rtol=2e-4)
    undo()
    assert not torch.allclose(plain, whole, atol=1e-3)
    assert torch.equal(answers(model, LONG), plain)
    assert set(AttentionInterface._global_mapping) == known


@pytest.mark.parametrize("context", [None, 7])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_caches_of_every_kind_and_padding(name: str, cache: str, context: int | None) -> None:
    """Caches that drop what a window hides, that keep it, and that have empty places at their end; one text begins later."""
    model = tiny(name)
    front = 5
    padded = torch.cat((torch.zeros(2, front, dtype=torch.long), LONG), dim=1)
    padded[1] = torch.cat((LONG[1], tokens(1, front, seed=6)[0]))
    seen = (padded != 0).long()
    places = (seen.cumsum(-1) - 1).clamp(min=0)
    with streaming(HeadReader(model), Streaming(SOME, WINDOW, SINKS, context)):
        alone, other = answers(model, padded[:1, front:])[0], answers(model, padded[1:])[0]
        found = [answers(model, padded, attention_mask=seen, position_ids=places)]
        for sizes in ([9, *[1] * 20], [3, 12, 14]):
            found.append(in_steps(model, padded, sizes, CACHES[cache](model), attention_mask=seen))
    for one in found:
        torch.testing.assert_close(one[0, front:], alone, atol=2e-5, rtol=2e-4)
        torch.testing.assert_close(one[1], other, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_what_is_generated_is_what_the_whole_text_gives(cache: str) -> None:
    model = tiny("mistral")
    plain = model.generate(LONG, max_new_tokens=12, do_sample=False, pad_token_id=0)
    undo = stream(HeadReader(model), Streaming(SOME, WINDOW, SINKS))
    found = model.generate(LONG, max_new_tokens=12, do_sample=False, pad_token_id=0, cache_implementation=cache)
    expected = answers(model, found)[:, -13:-1].argmax(-1)
    undo()
    assert torch.equal(found[:, -12:], expected)
    assert not torch.equal(found, plain)


def test_a_mask_on_another_device_is_the_same_mask() -> None:
    """Where a model is spread over devices, its layers are given copies of the masks."""
    model = tiny("mistral")

    def copied(module: Any, args: Any, kwargs: Any) -> Any:
        return args, kwargs | {"attention_mask": kwargs["attention_mask"].clone()}

    with streaming(HeadReader(model), Streaming(SOME, WINDOW, SINKS)):
        whole = answers(model, LONG)
        for layer in model.model.layers:
            layer.self_attn.register_forward_pre_hook(copied, with_kwargs=True)
        torch.testing.assert_close(in_steps(model, LONG, [1] * 24), whole, atol=2e-5, rtol=2e-4)


def test_a_mask_of_somebody_else_is_taken_at_its_word() -> None:
    model = tiny("llama")
    mask = torch.full((1, 1, 14, 14), torch.finfo(torch.float32).min).triu(1)
    with streaming(HeadReader(model), Streaming(SOME, WINDOW, SINKS)):
        torch.testing.assert_close(answers(model, attention_mask=mask), answers(model))


def test_padding_in_front_is_no_beginning() -> None:
    model, shown = tiny("llama"), SHOWN
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), shown), dim=1)
    seen = torch.cat((torch.zeros(1, 4, dtype=torch.long), torch.ones_like(shown)), dim=1)
    places = (seen.cumsum(-1) - 1).clamp(min=0)
    with streaming(HeadReader(model), Streaming(SOME, WINDOW, SINKS)):
        expected = answers(model, shown)
        found = answers(model, padded, attention_mask=seen, position_ids=places)
    torch.testing.assert_close(found[:, 4:], expected, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_a_model_streams_once(name: str) -> None:
    """One way on top of another could not be undone in the order in which they were made."""
    model = tiny(name)
    reader, plan = HeadReader(model), Streaming(SOME, WINDOW, SINKS)
    plain = answers(model)
    undo = stream(reader, plan)
    streamed = answers(model)
    with pytest.raises(ModelError, match="attends in another way than it was made with already"):
        stream(reader, plan)
    with pytest.raises(
        ModelError, match="undo that, or load the model again, before its planes can be stopped"
    ):
        stop_for_good(reader, {(0, 0): frozenset({1})})
    assert torch.equal(answers(model), streamed)
    undo()
    assert torch.equal(answers(model), plain)
    stream(reader, plan)()
    with gated(reader, Gate(heads=frozenset({(1, 2)}))), pytest.raises(ModelError, match="a gate is closed"):
        stream(reader, plan)
    assert torch.equal(answers(model), plain)


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_gates_and_streams_together(name: str) -> None:
    model = tiny(name)
    reader, gate = HeadReader(model), Gate(heads=frozenset({(1, 2)}))
    plan = Streaming(SOME, WINDOW, SINKS)
    with gated(reader, gate), streaming(reader, plan):
        first = answers(model)
    with streaming(reader, plan), gated(reader, gate):
        second = answers(model)
    torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-5)


def test_what_is_left_is_read_from_a_streaming_model() -> None:
    """A reading inside sees the states that streaming heads below have changed."""
    model = tiny("llama")
    reader, found = HeadReader(model), []
    query = (SHOWN.shape[1] - 1,)
    for plan in (Streaming(frozenset(), WINDOW, SINKS), Streaming(SOME, WINDOW, SINKS)):
        with streaming(reader, plan):
            layers: list[Any] = []
            reader.read(SHOWN, query, layers.append)
        found.append(layers)
    torch.testing.assert_close(found[0][0].keys, found[1][0].keys)
    assert not torch.allclose(found[0][2].keys, found[1][2].keys, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_a_mix_goes_from_streaming_to_everything(name: str) -> None:
    model = tiny(name)
    reader = HeadReader(model)
    heads = 2 if name == "llama" else 4
    everyone = frozenset((layer, head) for layer in range(3) for head in range(heads))
    plan = Streaming(everyone, WINDOW, SINKS)
    ends = []
    for share in (0.0, 1.0):
        with mixed(reader, plan, {layer: torch.full((heads,), share) for layer in range(3)}):
            ends.append(answers(model))
    with streaming(reader, plan):
        streamed = answers(model)
    torch.testing.assert_close(ends[0], streamed, atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(ends[1], answers(model), atol=2e-5, rtol=2e-4)
