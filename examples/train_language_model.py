"""Train a small language model on text, and watch its heads become positional or symbolic while it learns to copy.

    python examples/train_language_model.py --text enwik8 --preset small --seeds 0 1 2 3 4 --out runs/language
    python examples/train_language_model.py --text docs/ledger.md --preset tiny --out runs/tiny
    python examples/train_language_model.py --read --out runs/language

Any text file will do. enwik8 is the first 100 MB of the English Wikipedia, published at mattmahoney.net/dc/textdata.html under
CC BY-SA. A tokenizer is trained on the text; `--tokens FILE.npz` takes token ids instead (an array `tokens` in which 0 begins a
document, with its `tokenizer.json` beside it). `small` is a Llama of 8 layers of 8 heads for a GPU, `tiny` one of 2 layers that
trains in two minutes on two CPU cores. Two controls: `shuffled` trains on the same text with the words of each document in a random
order, `fast` is a model whose planes all turn at the frequencies of the faster half.

Every model is looked at about 50 times, at log-spaced steps, on random tokens of which half come again: the second copy begins at
another token in every prompt, so that no fixed distance leads to the answer. Watched are the loss on held-out text, the gain (how
much lower the loss is on the second copy than on the same tokens in the first), and of every head its positional and symbolic score
and swapped mass at the last token, and its attention to the token before (previous), to the token that followed the same token
before (induction) and to that same token (duplicate).

Rules, written before any model of the study was trained:

1. A head is pure where it is called positional or symbolic at gamma = 0.1 and its swapped mass is at least 0.2. Only heads of layers
   from 1 on are counted: an untrained model with large logits has symbolic heads in layer 0.
2. A quantity has its onset at the first step at which its condition holds there and at all of the next 5 points. Where fewer points
   follow, there is no onset.
3. Copying begins at the onset of gain >= 0.3. Symbolic heads begin at the onset of "this head is pure symbolic" of the earliest head;
   positional heads and previous-token heads (attention >= 0.5 on the token before, layer 0 included) likewise.
4. Symbolic heads come with copying if in every seed both onsets exist and are less than a factor of 1.5 apart. Previous-token heads
   come first if in every seed their onset is earlier than that of copying.
5. Copying needs the symbolic heads if, in every seed, replacing their outputs by their means at the end of training leaves less than
   half of the gain, and less than each of 39 choices of as many other heads of the same layers (p <= .025). The same is said of
   positional heads. Where the layers have too few other heads for 39 different choices, all choices are taken, and with fewer than
   19 nothing is concluded.
6. What the shuffled control shows as well says nothing about the order of words. Three seeds are the fewest from which anything is
   concluded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from dataclasses import asdict, dataclass, replace
from math import comb, cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F

import rotoscope as rs
from rotoscope.scores.classes import purity_classes

DOCUMENT = "<|end|>"
CONTROLS = ("none", "shuffled", "fast")
PATTERNS = ("previous", "induction", "duplicate")
GAIN, MASS, PREVIOUS, STABLE, FACTOR, DRAWS, FEWEST_DRAWS, FEWEST_SEEDS = 0.3, 0.2, 0.5, 5, 1.5, 39, 19, 3
"""The numbers of the rules above."""


@dataclass(frozen=True)
class Recipe:
    """Sizes and training of a model. The defaults are the preset `small`."""

    layers: int = 8
    heads: int = 8
    width: int = 512
    inner: int = 1376
    vocabulary: int = 8192
    context: int = 256
    batch: int = 128
    steps: int = 1200
    warmup: int = 100
    learning_rate: float = 1e-3
    points: int = 50
    prompts: int = 16
    seed: int = 0
    control: str = "none"

    @property
    def name(self) -> str:
        return f"{'text' if self.control == 'none' else self.control}-{self.seed}"

    @property
    def looks(self) -> list[int]:
        """Step 0, then log-spaced steps to the last."""
        steps = np.geomspace(min(10, self.steps), self.steps, self.points).round().astype(int)
        return sorted({0, *steps.tolist()})

    @property
    def copied(self) -> tuple[int, int]:
        """How many random tokens a prompt has, and how many of them come again."""
        return self.context // 4, self.context // 8


PRESETS = {
    "small": Recipe(),
    "tiny": Recipe(
        layers=2, heads=4, width=128, inner=344, vocabulary=1024, context=128, batch=16, steps=400, points=40, prompts=8
    ),
}  # fmt: skip


# Text.


def encoded(file: Path, vocabulary: int) -> tuple[np.ndarray, Tokenizer]:
    """The token ids of a text file, by a byte-level BPE trained on it; an empty line begins a document."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    documents = [
        part for part in file.read_text(encoding="utf-8", errors="replace").split("\n\n") if part.strip()
    ]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[DOCUMENT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    ids = [tokenizer.encode(DOCUMENT + part).ids for part in documents]
    return np.fromiter(itertools.chain.from_iterable(ids), dtype=np.uint16), tokenizer


def shuffled(tokens: np.ndarray, tokenizer: Tokenizer, seed: int) -> np.ndarray:
    """The same documents, each with its words in a random order; the tokens of a word stay together."""
    words = [tokenizer.id_to_token(k) or "" for k in range(tokenizer.get_vocab_size())]
    begins_word = np.array([word[:1] in ("Ġ", "Ċ") or word == DOCUMENT for word in words])[tokens]
    begins_word |= np.concatenate(([True], tokens[:-1] == 0))  # a document's first word has no space before it
    starts = np.flatnonzero(begins_word)
    lengths = np.diff(starts, append=len(tokens))
    begins_document = tokens[starts] == 0
    key = np.where(begins_document, -1.0, np.random.default_rng(seed).random(len(starts)))
    order = np.lexsort((key, np.cumsum(begins_document)))
    ends = np.cumsum(lengths[order])
    places = np.repeat(starts[order] - (ends - lengths[order]), lengths[order]) + np.arange(len(tokens))
    return tokens[places]


def windows(tokens: torch.Tensor, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """As many stretches of the text [count, length], from random places."""
    begin = torch.randint(len(tokens) - length + 1, (count, 1), generator=generator)
    return tokens[(begin + torch.arange(length)).to(tokens.device)].long()


# The model.


def new_model(recipe: Recipe, device: str) -> Any:
    """A Llama with fresh weights."""
    torch.manual_seed(recipe.seed)
    config = tf.LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.width,
        intermediate_size=recipe.inner,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        max_position_embeddings=recipe.context,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    model = tf.LlamaForCausalLM(config).to(device)
    if recipe.control == "fast":
        frequencies = model.model.rotary_emb.inv_freq
        frequencies.copy_(frequencies[: len(frequencies) // 2].repeat_interleave(2))
    return model


def token_losses(model: Any, tokens: torch.Tensor, device: str) -> torch.Tensor:
    """Cross entropy of every token after the first [rows, n - 1]."""
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        logits = model(input_ids=tokens[:, :-1]).logits
    losses = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return losses.unflatten(0, logits.shape[:2])


# What is watched.


class Copies:
    """Random tokens of which half come again from another place on, and where the copy of each stands."""

    def __init__(self, recipe: Recipe, device: str, count: int) -> None:
        generator = torch.Generator().manual_seed(1_000_003)
        self.length, self.again = recipe.copied
        once = torch.rand(count, recipe.vocabulary - 1, generator=generator).argsort(1)[:, : self.length] + 1
        self.begin = torch.randint(self.length - self.again, (count, 1), generator=generator)
        places = self.begin + torch.arange(self.again)
        self.tokens = torch.cat((once, once.gather(1, places)), dim=1).to(device)
        self.places = places.to(device)

    def prompts(self, count: int) -> rs.tasks.Prompts:
        """The first of them without the last token, which is the answer."""
        return replace(
            rs.tasks.from_tokens(self.tokens[:count, :-1].cpu(), answers=self.tokens[:count, -1].tolist()),
            task="copies", chance=1 / self.length,
        )  # fmt: skip

    def gain(self, losses: torch.Tensor) -> dict[str, float]:
        """Mean loss on the tokens of the second copy after its first, and on the same tokens in the first."""
        second = losses[:, self.length :]  # of tokens length + 1 and on
        first = losses.gather(1, self.places[:, 1:] - 1)
        return {"first_loss": float(first.mean()), "second_loss": float(second.mean()),
                "gain": float(first.mean() - second.mean())}  # fmt: skip

    def patterns(self, attention: torch.Tensor) -> torch.Tensor:
        """Attention [prompts, heads, n, n] to the token before, to the one to be copied, and to the same token [3, heads]."""
        previous = attention.diagonal(-1, -2, -1).mean((0, 2))
        second = attention[:, :, self.length : self.length + self.again]
        induction, duplicate = (
            second.gather(-1, (self.places + shift)[:, None, :, None].expand(*second.shape[:3], 1)).mean(
                (0, 2, 3)
            )
            for shift in (1, 0)
        )
        return torch.stack((previous, induction, duplicate))


@torch.no_grad()
def look(model: Any, text: torch.Tensor, copies: Copies, device: str) -> tuple[dict[str, float], pd.DataFrame]:
    """Losses of a model at a step, and the patterns of its heads."""
    model.eval()
    numbers = {"text_loss": float(token_losses(model, text, device).mean())}
    numbers |= copies.gain(token_losses(model, copies.tokens, device))
    model.set_attn_implementation("eager")  # the others do not say what they attended to
    attentions = model(input_ids=copies.tokens, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    model.train()
    found = torch.stack([copies.patterns(layer) for layer in attentions]).cpu()  # [layers, patterns, heads]
    index = [(layer, head) for layer in range(found.shape[0]) for head in range(found.shape[2])]
    heads = pd.DataFrame(index, columns=["layer", "head"])
    for k, name in enumerate(PATTERNS):
        heads[name] = found[:, k].flatten().numpy()
    return numbers, heads


@torch.no_grad()
def gain_without(model: Any, heads: list[tuple[int, int]], copies: Copies, device: str) -> float:
    """The gain when the outputs of these heads are their means over the prompts."""
    width = model.config.hidden_size // model.config.num_attention_heads
    hooks = []
    for layer, own in itertools.groupby(sorted(heads), key=lambda place: place[0]):
        dimensions = torch.cat([torch.arange(head * width, (head + 1) * width) for _, head in own]).to(device)

        def averaged(module: Any, inputs: tuple[torch.Tensor], dimensions: torch.Tensor = dimensions) -> Any:
            outputs = inputs[0].clone()
            outputs[..., dimensions] = outputs[..., dimensions].mean((0, 1))
            return (outputs,)

        hooks.append(model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(averaged))
    model.eval()
    gain = copies.gain(token_losses(model, copies.tokens, device))["gain"]
    for hook in hooks:
        hook.remove()
    return gain


def ablation(model: Any, pure: pd.DataFrame, recipe: Recipe, copies: Copies, device: str) -> pd.DataFrame:
    """The gain without the pure heads of either kind, and without as many others of the same layers (draw from 0 on)."""
    rows = [{"kind": "nothing", "draw": -1, "heads": 0, "gain": gain_without(model, [], copies, device)}]
    for kind, table in pure.groupby("head_class"):
        chosen = list(table[["layer", "head"]].itertuples(index=False, name=None))
        for draw, heads in enumerate([chosen, *other_choices(chosen, recipe)], start=-1):
            gain = gain_without(model, heads, copies, device)
            rows.append({"kind": str(kind), "draw": draw, "heads": len(heads), "gain": gain})
    return pd.DataFrame(rows)


def other_choices(chosen: list[tuple[int, int]], recipe: Recipe) -> list[list[tuple[int, int]]]:
    """Choices of as many other heads of the same layers, no two of them alike: DRAWS of them, or all there are."""
    layers = {layer: sum(place[0] == layer for place in chosen) for layer, _ in chosen}
    free = {
        layer: [(layer, head) for head in range(recipe.heads) if (layer, head) not in chosen]
        for layer in layers
    }
    possible = 1
    for layer, count in layers.items():
        possible *= comb(len(free[layer]), count)
    if possible <= DRAWS:
        each = [itertools.combinations(free[layer], count) for layer, count in layers.items()]
        return [list(itertools.chain(*parts)) for parts in itertools.product(*each)] if possible else []
    generator, choices = random.Random(0), dict[tuple[tuple[int, int], ...], None]()
    while len(choices) < DRAWS:
        parts = [sorted(generator.sample(free[layer], count)) for layer, count in layers.items()]
        choices[tuple(itertools.chain(*parts))] = None
    return [list(choice) for choice in choices]


# Training.


def train(recipe: Recipe, tokens: np.ndarray, out: Path, device: str) -> None:
    """Train one model, and write what was watched: `heads` is the monitor's run, the other tables are beside it."""
    began, folder = time.perf_counter(), out / recipe.name
    text = torch.from_numpy(tokens.astype(np.int32)).to(device)
    held_out = len(text) // 50
    generator = torch.Generator().manual_seed(recipe.seed)
    shown = windows(text[-held_out:], recipe.prompts, recipe.context, torch.Generator().manual_seed(7))
    text, copies = text[:-held_out], Copies(recipe, device, 4 * recipe.prompts)
    model = new_model(recipe, device).train()
    optimiser = torch.optim.AdamW(
        model.parameters(), recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    monitor = rs.HeadMonitor(
        copies.prompts(recipe.prompts),
        every=recipe.looks,
        out=folder / "heads",
        name=recipe.name,
        overwrite=True,
    )
    points, patterns, watching = [], [], 0.0
    for step in range(recipe.steps + 1):
        if step in recipe.looks:
            if device == "cuda":
                torch.cuda.synchronize()
            looked = time.perf_counter()
            monitor.step(model, step)
            numbers, heads = look(model, shown, copies, device)
            watching += time.perf_counter() - looked
            points.append({"step": step, **numbers, "seconds": time.perf_counter() - began})
            patterns.append(heads.assign(step=step))
            print(
                f"{recipe.name} {step:5}: " + ", ".join(f"{k} {v:.2f}" for k, v in points[-1].items()),
                flush=True,
            )
        if step == recipe.steps:
            break
        rise, done = (step + 1) / recipe.warmup, step / recipe.steps
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * min(rise, 0.1 + 0.45 * (1 + cos(pi * done)))
        token_losses(
            model, windows(text, recipe.batch, recipe.context + 1, generator), device
        ).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    monitor.finish()
    scores = rs.open(folder / "heads").scores
    pure = pure_heads(scores[scores["step"] == recipe.steps]).query("layer >= 1 and head_class != 'no'")
    ablation(model, pure, recipe, copies, device).to_parquet(folder / "ablation.parquet")
    pd.DataFrame(points).to_parquet(folder / "points.parquet")
    pd.concat(patterns).to_parquet(folder / "patterns.parquet")
    seconds = {"seconds": time.perf_counter() - began, "watching_seconds": watching, "device": device}
    (folder / "recipe.json").write_text(json.dumps(asdict(recipe) | seconds, indent=1) + "\n", encoding="utf-8")


# The rules.


def pure_heads(scores: pd.DataFrame) -> pd.DataFrame:
    """The scores with `head_class`: positional or symbolic where a head is pure and has mass, else no."""
    kinds = np.array(purity_classes(scores["positional_score"], scores["symbolic_score"]))
    pure = np.isin(kinds, ("positional", "symbolic")) & (scores["swapped_mass"] >= MASS).to_numpy()
    return scores.assign(head_class=np.where(pure, kinds, "no"))


def onset(holds: pd.Series) -> float:
    """The first step (index) at which something holds, there and at the next STABLE points; NaN where there is none."""
    values = holds.sort_index()
    for k in range(len(values) - STABLE):
        if values.iloc[k : k + STABLE + 1].all():
            return float(values.index[k])
    return float("nan")


def first_onset(heads: pd.DataFrame) -> float:
    """The earliest onset of the boolean column `holds` among heads, by (step, layer, head)."""
    by_head = heads.set_index(["step", "layer", "head"])["holds"].unstack("step")
    return min((step for step in by_head.apply(onset, axis=1) if step == step), default=float("nan"))


def onsets(folder: Path) -> dict[str, Any]:
    """What the rules say of one model."""
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    points = pd.read_parquet(folder / "points.parquet").set_index("step")
    patterns, without = (pd.read_parquet(folder / f"{name}.parquet") for name in ("patterns", "ablation"))
    heads = pure_heads(rs.open(folder / "heads").scores).query("layer >= 1")
    last = heads[heads["step"] == heads["step"].max()]["head_class"]
    row = {
        "model": folder.name, "control": recipe["control"], "text_loss": points["text_loss"].iloc[-1],
        "gain": points["gain"].iloc[-1], "copying": onset(points["gain"] >= GAIN),
        "previous_token": first_onset(patterns.assign(holds=patterns["previous"] >= PREVIOUS)),
        "watching_share": recipe["watching_seconds"] / recipe["seconds"],
    }  # fmt: skip
    for kind in ("positional", "symbolic"):
        row[kind] = first_onset(heads.assign(holds=heads["head_class"] == kind))
        row[f"{kind}_at_end"] = int((last == kind).sum())
        gains = without[without["kind"] == kind].sort_values("draw")["gain"].tolist()
        own, others = gains[0] if gains else float("nan"), gains[1:]
        row[f"without_{kind}"] = own
        row[f"without_as_many_others_{kind}"] = float(np.median(others)) if others else float("nan")
        needed = own < row["gain"] / 2 and all(own < other for other in others)
        row[f"needs_{kind}"] = str(needed) if len(others) >= FEWEST_DRAWS else "not concluded"
    return row


def conclusions(table: pd.DataFrame) -> list[str]:
    """The answers that the rules allow, a sentence each."""
    seeds = table[table["control"] == "none"]
    if len(seeds) < FEWEST_SEEDS:
        return [f"{len(seeds)} of at least {FEWEST_SEEDS} seeds: nothing is concluded"]
    ratio = seeds["symbolic"] / seeds["copying"]
    answers = {
        f"Symbolic heads come with copying, within a factor of {FACTOR}": ratio.between(1 / FACTOR, FACTOR, "neither"),
        "Previous-token heads come before copying": seeds["previous_token"] < seeds["copying"],
        "Copying needs the symbolic heads": seeds["needs_symbolic"] == "True",
        "Copying needs the positional heads": seeds["needs_positional"] == "True",
    }  # fmt: skip
    lines = [f"{words}: {int(holds.sum())} of {len(seeds)} seeds, so {'yes' if holds.all() else 'not shown'}."
             for words, holds in answers.items()]  # fmt: skip
    for row in table[table["control"] != "none"].itertuples():
        copying = (
            "does not begin to copy"
            if row.copying != row.copying
            else f"begins to copy at step {row.copying:.0f}"
        )
        lines.append(
            f"Control {row.model} {copying} (gain {row.gain:.2f}); at the end {row.symbolic_at_end} heads are pure symbolic and "
            f"{row.positional_at_end} pure positional."
        )
    return lines


def read(out: Path) -> pd.DataFrame:
    """A row for each finished model of the study, printed with the conclusions."""
    table = pd.DataFrame([onsets(file.parent) for file in sorted(out.glob("*/recipe.json"))])
    table.to_csv(out / "onsets.csv", index=False)
    print(table.to_string(index=False, float_format=lambda number: f"{number:.3g}"))
    print("\n".join(conclusions(table)), flush=True)
    return table


def drawn(out: Path) -> Path:
    """The study as a figure: text loss and gain, and how many heads are pure, over training."""
    from matplotlib import pyplot as plt

    colours = {"none": "#222222", "shuffled": "#bb5566", "fast": "#4477aa"}
    figure, panels = plt.subplots(4, 1, figsize=(6, 9), sharex=True, layout="constrained")
    for folder in sorted(file.parent for file in out.glob("*/recipe.json")):
        recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
        points = pd.read_parquet(folder / "points.parquet").set_index("step")
        heads = pure_heads(rs.open(folder / "heads").scores).query("layer >= 1")
        curves = [points["text_loss"], points["gain"]]
        curves += [
            (heads["head_class"] == kind).groupby(heads["step"]).sum() for kind in ("positional", "symbolic")
        ]
        for axes, curve in zip(panels, curves, strict=True):
            axes.plot(curve, color=colours[recipe["control"]], lw=1, label=folder.name)
    panels[0].legend(fontsize="small", frameon=False)
    panels[1].axhline(GAIN, color="#999999", ls=":", lw=1)
    labels = (
        "loss on held-out text",
        "gain of the second copy",
        "pure positional heads",
        "pure symbolic heads",
    )
    for axes, label in zip(panels, labels, strict=True):
        axes.set(xscale="symlog", ylabel=label)
    panels[-1].set_xlabel("training step")
    figure.savefig(out / "language_model.png", dpi=150)
    return out / "language_model.png"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", type=Path, help="a text file; a tokenizer is trained on it")
    source.add_argument("--tokens", type=Path, help="token ids (.npz) with tokenizer.json beside them")
    source.add_argument("--read", action="store_true", help="print and draw the models that are in --out")
    parser.add_argument("--out", type=Path, default=Path("runs/language"))
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--controls", nargs="*", choices=CONTROLS[1:], default=[], help="with the first seed")
    parser.add_argument("--steps", type=int, help="instead of the preset's")
    parser.add_argument("--batch", type=int, help="instead of the preset's")
    parser.add_argument("--points", type=int, help="instead of the preset's")
    parser.add_argument("--seconds", type=float, help="begin no model that would end later")
    chosen = parser.parse_args(arguments)
    if chosen.read:
        if not any(chosen.out.glob("*/recipe.json")):
            parser.error(f"there is no finished model in {chosen.out}: train one first, with --text")
        read(chosen.out)
        print(drawn(chosen.out))
        return
    if chosen.text is None and chosen.tokens is None:
        parser.error("give a text file (--text) or token ids (--tokens)")
    began, device = time.perf_counter(), "cuda" if torch.cuda.is_available() else "cpu"
    changes = {name: getattr(chosen, name) for name in ("steps", "batch", "points") if getattr(chosen, name)}
    recipe = replace(PRESETS[chosen.preset], **changes)
    if chosen.tokens:
        tokens = np.load(chosen.tokens)["tokens"]
        tokenizer = Tokenizer.from_file(str(chosen.tokens.with_name("tokenizer.json")))
    else:
        tokens, tokenizer = encoded(chosen.text, recipe.vocabulary)
    fewest = 60 * recipe.context  # a fiftieth is held out, and has to be longer than the context
    if len(tokens) < fewest:
        parser.error(f"the text has {len(tokens)} tokens; give one of at least {fewest}")
    recipe = replace(recipe, vocabulary=tokenizer.get_vocab_size())
    first, *others = chosen.seeds
    # Seeds and controls take turns, so that a budget leaves some of both.
    models = [
        (first, "none"),
        *((first, control) for control in chosen.controls[:1]),
        *((k, "none") for k in others[:2]),
    ]
    models += [*((first, control) for control in chosen.controls[1:]), *((k, "none") for k in others[2:])]
    longest = 0.0
    for seed, control in models:
        started = time.perf_counter()
        if chosen.seconds is not None and longest and started - began + longest > chosen.seconds:
            print(f"no time is left for {control} {seed}", flush=True)
            continue
        own = shuffled(tokens, tokenizer, seed) if control == "shuffled" else tokens
        train(replace(recipe, seed=seed, control=control), own, chosen.out, device)
        longest = max(longest, time.perf_counter() - started)
    read(chosen.out)


if __name__ == "__main__":
    main()
