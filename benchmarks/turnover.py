"""Where place turns into symbol: one model's heads at several list lengths, and what silencing them does.

    python -m benchmarks.turnover qwen2.5-coder-0.5b --out runs/turnover/qwen2.5-coder-0.5b

Heads and prompts are measured in this order, so that what answers a question comes before what explains it: accuracy and scores
by list length and task; the prompt permuted; what silencing heads does to the answer; nulls; who writes the place; frequencies; all
depths. Every part is a piece of the run: stopped, it goes on where it was. `--reduced` is for two cores.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.depths.swaps import Swapping, gaussian_permuted
from rotoscope.experiments.depths.turnover import TurnoverStudy, border, symbolic_heads_in_prompt
from rotoscope.experiments.depths.writers import ALL, NONE, Silenced, Writers, summarise_writers
from rotoscope.experiments.profile.run import describe, subject_settings
from rotoscope.experiments.selection import control_sets
from rotoscope.measures.batches import answer_logits, answer_losses, answering, batches
from rotoscope.measures.null import make_nulls
from rotoscope.models.interventions import Attend, AttentionInput, intervening
from rotoscope.models.reader import HeadReader
from rotoscope.models.sites import readable_attention
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.stats.aggregate import HEAD, INPUT_SCORES, PAIRED_SCORES, SCORES
from rotoscope.tasks.prompt import Prompts

Head = tuple[int, int]
CAUSES = ("followers of the turnover layer", "followers from it on", "symbolic heads that stay below")


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    sizes: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    """Facts of a binding prompt."""
    list_sizes: tuple[int, ...] = (8, 16, 32)
    """Lines of lookup and words of recall."""
    prompts: int = 16
    longest_prompts: int = 8
    """Prompts of more than 128 facts."""
    permuted: tuple[int, ...] = (16, 32)
    """Facts where the prompt is permuted, every swap run."""
    null_sizes: tuple[int, ...] = (16, 32)
    draws: int = 19
    depth_size: int = 16
    depth_prompts: int = 8
    cause_sizes: tuple[int, ...] = (8, 16, 32, 64)
    cause_prompts: int = 32
    controls: int = 20
    readers: int = 8
    writer_swaps: int = 16
    seed: int = 0
    batch_tokens: int | None = None
    permuted_prompts: int = 16


REDUCED = Plan(
    sizes=(8, 16, 32),
    list_sizes=(8, 16),
    prompts=8,
    permuted=(16,),
    null_sizes=(16,),
    depth_prompts=4,
    cause_sizes=(8, 16),
    cause_prompts=16,
    permuted_prompts=8,
)


def study(
    subject: Any, plan: Plan, out: str | None, parts: Sequence[str], seconds: float | None = None
) -> TurnoverStudy:
    """The parts of the study on one model; none begins after so many seconds."""
    subject = rs.load(subject)
    shown = rs.tasks.binding(subject, plan.permuted[0], 1, plan.seed)
    settings = subject_settings(subject, shown) | asdict(plan) | {"parts": list(parts)}
    run = Run(TurnoverStudy, settings, out, device=subject.device.type)
    if run.finished is not None:
        return run.finished
    reader = subject.reader()
    work = _Study(subject, reader, plan, run)
    started = time.perf_counter()
    for part in parts:
        began = time.perf_counter()
        if seconds is not None and began - started > seconds:
            print(f"{part} and what follows are left out: {seconds} seconds are over", flush=True)
            break
        getattr(work, part)()
        print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
    run.arrange()
    return run.finish(subject=describe(subject, reader, settings["fingerprint"]))


PARTS = ("tasks", "permuted", "causes", "nulls", "writers", "frequencies", "depths")


@dataclass
class _Study:
    subject: Any
    reader: HeadReader
    plan: Plan
    run: Run[TurnoverStudy]

    @property
    def common(self) -> dict[str, Any]:
        batch = {} if self.plan.batch_tokens is None else {"batch_tokens": self.plan.batch_tokens}
        return {"show_progress": False, **batch}

    def binding(self, size: int, count: int, seed: int | None = None, **options: Any) -> Prompts:
        """Prompts of so many facts."""
        return rs.tasks.binding(self.subject, size, count, self.plan.seed if seed is None else seed, **options)

    # Accuracy and the papers' scores

    def tasks(self) -> None:
        """Accuracy first, then every head's scores, by task and list length."""
        plan, seed = self.plan, self.plan.seed
        cases: list[tuple[str, int, Callable[[], Prompts]]] = [
            ("binding", size, partial(self.binding, size, plan.longest_prompts if size > 128 else plan.prompts))
            for size in plan.sizes
        ]
        lists: dict[str, Any] = {"lookup": rs.tasks.lookup, "recall": rs.tasks.recall}
        cases += [
            (name, size, partial(task, self.subject, size, plan.prompts, seed))
            for name, task in lists.items()
            for size in plan.list_sizes
        ]
        for name, size, make in cases:
            tables = self.run.piece(f"tasks-{name}-{size:04d}", partial(self._task, name, size, make))
            row = tables["tasks"].iloc[0] if len(tables["tasks"]) else None
            if row is not None:
                print(f"{name} {size}: accuracy {row['accuracy']:.2f}, r {row['correlation']:.2f}", flush=True)

    def _task(self, name: str, size: int, make: Callable[[], Prompts]) -> Tables:
        try:
            prompts = make()
        except RotoscopeError as problem:
            print(f"{name} {size} left out: {problem}", flush=True)
            return {"tasks": pd.DataFrame(), "heads": pd.DataFrame()}
        profile = rs.profile(self.subject, prompts, null="none", examples=False, **self.common)
        figures = profile.statistics().set_index("statistic")["value"]
        about = {"task": name, "size": size}
        row = about | {
            "prompts": len(prompts),
            "chance": prompts.chance,
            "accuracy": profile.accuracy,
            "log_likelihood": float(profile.answers["log_likelihood"].mean()),
            **{key.replace(" ", "_"): float(value) for key, value in figures.items()},
        }
        columns = [*HEAD, *SCORES, "head_class", "swapped_mass", "class_share"]
        return {"tasks": pd.DataFrame([row]), "heads": profile.at()[columns].assign(**about)}

    # The prompt permuted

    def permuted(self) -> None:
        """Every swap of the prompt, the same with the block before, and both nulls."""
        for size in self.plan.permuted:
            prompts = self.binding(size, self.plan.permuted_prompts)
            swaps = size * (size - 1) // 2
            tables = self.run.piece(f"permuted-{size:04d}", partial(self._permuted, prompts, size, swaps))
            heads = symbolic_heads_in_prompt(tables["permuted"])
            best = border(heads["layer"].to_numpy(), heads["follows"].to_numpy(dtype=bool))
            print(
                f"{size} facts: {len(heads)} symbolic, {int(heads['follows'].sum())} follow, {best}", flush=True
            )

    def nulls(self) -> None:
        """Random models and Gaussian keys on the same prompts."""
        for size in self.plan.null_sizes:
            prompts = self.binding(size, self.plan.permuted_prompts)
            self.run.piece(f"random-{size:04d}", partial(self._random, prompts, size))
            self.run.piece(f"gaussian-{size:04d}", partial(self._gaussian, prompts, size))

    def _random(self, prompts: Prompts, size: int) -> Tables:
        """The swaps that matter most to the few symbolic heads of a random model are enough."""
        swaps = min(size * (size - 1) // 2, Swapping().swaps)
        options = self.common | {"null": "random", "null_draws": self.plan.draws}
        profile = rs.profile(self.subject, prompts, examples=False, input_swaps=swaps, **options)
        moved = profile.tables.get("null_input_prompts")
        return {
            "null_permuted": _symbolic_draws(profile.tables["null_prompts"], moved).assign(size=size),
            "verdicts": profile.statistics().assign(null_name="random", size=size),
        }

    def _permuted(self, prompts: Prompts, size: int, swaps: int) -> Tables:
        options = self.common | {"null": "none", "examples": False}
        profile = rs.profile(self.subject, prompts, input_swaps=swaps, **options)
        columns = [*SCORES, *INPUT_SCORES, "covered_share", *PAIRED_SCORES, "paired_covered_share"]
        rows = profile.scored
        kept = ["prompt", *HEAD, *(name for name in columns if name in rows)]
        return {"permuted": _small(rows[kept]).assign(size=size)}

    def _gaussian(self, prompts: Prompts, size: int) -> Tables:
        """Keys that hold no content, drawn anew after every swap: what a head follows then is chance."""
        options = self.common | {"null": "gaussian", "null_draws": self.plan.draws}
        profile = rs.profile(self.subject, prompts, examples=False, **options)
        single = batches(prompts, "last", 1)
        draws = list(range(2 * self.plan.draws))
        nulls = list(
            make_nulls(self.subject, self.reader, "gaussian", draws, profile.prompts, [], seed=self.plan.seed)
        )
        rows = []
        pairs = list(zip(nulls[::2], nulls[1::2], strict=True))
        by_prompt = [gaussian_permuted(pairs, batch) for batch in single]
        for (before, _), tables in zip(pairs, zip(*by_prompt, strict=True), strict=True):
            found = pd.concat(tables, ignore_index=True)
            own = found[found["own"]].drop(columns=["own", "depth", "covered_share"])
            moved = found[~found["own"]].rename(columns=dict(zip(SCORES, INPUT_SCORES, strict=True)))
            about = {"null_name": "gaussian", "draw": before.draw // 2}
            keys = ["prompt", *HEAD, "tau", *INPUT_SCORES, "covered_share"]
            rows.append(_symbolic_draws(own.assign(**about), moved[keys].assign(**about)))
        return {
            "null_permuted": pd.concat(rows, ignore_index=True).assign(size=size),
            "verdicts": profile.statistics().assign(null_name="gaussian", size=size),
        }

    @property
    def _symbolic(self) -> pd.DataFrame:
        rows = self.run.result.permuted
        return symbolic_heads_in_prompt(rows[rows["size"] == self.plan.depth_size])

    @property
    def _layer(self) -> float:
        heads = self._symbolic
        return border(heads["layer"].to_numpy(), heads["follows"].to_numpy(dtype=bool)).layer

    # All depths

    def depths(self) -> None:
        self.run.piece("depths", self._depths)

    def _depths(self) -> Tables:
        size = self.plan.depth_size
        prompts = self.binding(size, self.plan.depth_prompts)
        swaps = size * (size - 1) // 2
        found = rs.depths(self.subject, prompts, at=("all",), swaps=swaps, null="none", **self.common)
        columns = [*HEAD, "depth", "own", *SCORES, "covered_share"]
        curves = found.curves[columns].merge(self._symbolic[HEAD], on=HEAD)
        carry = found.at()[[*HEAD, "stays_at", "carry_depth"]]
        return {"curves": curves.merge(carry, on=HEAD, how="left").assign(size=size)}

    # Causes

    def groups(self) -> dict[str, list[Head]]:
        """The heads that are silenced, by what they are."""
        heads, layer = self._symbolic, self._layer
        if np.isnan(layer):
            layer = heads.loc[heads["follows"], "layer"].median() if heads["follows"].any() else np.inf
        chosen = (
            heads[heads["follows"] & (heads["layer"] == layer)],
            heads[heads["follows"] & (heads["layer"] >= layer)],
            heads[~heads["follows"] & (heads["layer"] < layer)],
        )
        return {
            name: list(rows[HEAD].itertuples(index=False, name=None))
            for name, rows in zip(CAUSES, chosen, strict=True)
        }

    def causes(self) -> None:
        """Accuracy and loss with heads replaced by their mean output, beside random heads of the same layers."""
        reference = self.binding(self.plan.depth_size, 8, self.plan.seed + 1000)
        means = mean_outputs(self.reader, [torch.tensor([prompt.tokens]) for prompt in reference])
        for size in self.plan.cause_sizes:
            self.run.piece(f"causes-{size:04d}", partial(self._causes, size, means))

    def _causes(self, size: int, means: dict[int, torch.Tensor]) -> Tables:
        try:
            prompts = self.binding(size, self.plan.cause_prompts, self.plan.seed + 2000, equal_length=True)
        except RotoscopeError as problem:
            print(f"causes at {size} facts left out: {problem}", flush=True)
            return {"causes": pd.DataFrame()}
        work = batches(prompts, "task", self.plan.batch_tokens or 4096)
        rows = []
        for name, draw, heads in self._conditions():
            losses, correct = [], []
            with silenced(self.reader, heads, means), answering(self.subject.model):
                for batch in work:
                    loss, right = answer_losses(answer_logits(self.subject, batch), batch)
                    losses += loss.mean(1).tolist()
                    correct += right.mean(1).tolist()
            about = {"size": size, "silenced": name, "draw": draw, "heads": len(heads), "prompts": len(losses)}
            error = float(np.std(losses, ddof=1) / np.sqrt(len(losses)))
            rows.append(about | {"accuracy": np.mean(correct), "loss": np.mean(losses), "loss_error": error})
        return {"causes": pd.DataFrame(rows)}

    def _conditions(self) -> Iterator[tuple[str, int, list[Head]]]:
        yield "nothing", -1, []
        for name, heads in self.groups().items():
            if not heads:
                continue
            yield name, -1, heads
            for draw in range(self.plan.controls):
                yield name, draw, self._others(heads, f"{self.plan.seed} {name} {draw}")

    def _others(self, heads: list[Head], seed: str) -> list[Head]:
        """Equal numbers of other heads of the same layers; where there are too few others, all of them."""
        dice, drawn = random.Random(seed), []
        for layer in sorted({layer for layer, _ in heads}):
            number = sum(at == layer for at, _ in heads)
            others = [(layer, k) for k in range(self.reader.head_counts[layer]) if (layer, k) not in heads]
            drawn += dice.sample(others, min(number, len(others)))
        return drawn

    # Writers

    def writers(self) -> None:
        self.run.piece("writers", self._writers)

    def _writers(self) -> Tables:
        """Whether heads still stay when the positional heads below them write nothing."""
        own = self.run.result.heads.query("task == 'binding' and size == @self.plan.depth_size")
        stay = self._symbolic[lambda rows: ~rows["follows"]].merge(own[[*HEAD, "swapped_mass"]], on=HEAD)
        stay = stay[stay["layer"] > 0].nlargest(self.plan.readers, "swapped_mass")
        readers = tuple((int(layer), int(head)) for layer, head in stay[HEAD].to_numpy())
        top = max((layer for layer, _ in readers), default=0)
        rows = own[(own["head_class"] == "positional") & (own["layer"] < top)]
        positional = [(int(layer), int(head)) for layer, head in rows[HEAD].to_numpy()]
        if not readers or not positional:
            return {"writers": pd.DataFrame()}
        dice = random.Random(str(self.plan.seed))
        gates = {frozenset[Head](): [Silenced(NONE, readers)], frozenset(positional): [Silenced(ALL, readers)]}
        sets = control_sets(positional, self.reader.head_counts, self.plan.controls, dice, positional)
        for draw, chosen in enumerate(sets):
            gates[chosen] = [Silenced(ALL, readers, draw=draw)]
        work = batches(self.binding(self.plan.depth_size, self.plan.depth_prompts), "last", 1)
        swapping = Swapping((0,), self.plan.writer_swaps)
        asked = Writers(self.reader, work, gates, swapping)
        rows = pd.concat([asked.under(heads)["writers"] for heads in gates], ignore_index=True)
        return {"writers": summarise_writers(rows)}

    # Frequencies

    def frequencies(self) -> None:
        self.run.piece("frequencies", self._frequencies)

    def _frequencies(self) -> Tables:
        """Both scores of every plane of the heads that are pure symbolic at their layer."""
        heads = self._symbolic
        names = [(int(layer), int(head)) for layer, head in heads[HEAD].to_numpy()]
        if not names:
            return {"frequencies": pd.DataFrame()}
        prompts = self.binding(self.plan.depth_size, 4)
        options = self.common | {"null": "none", "examples": False}
        profile = rs.profile(self.subject, prompts, frequencies=names, **options)
        columns = [*HEAD, "frequency_id", "angle", *SCORES, "logit_norm", "max_logit"]
        return {"frequencies": profile.frequencies[columns].merge(heads[[*HEAD, "follows"]], on=HEAD)}


def mean_outputs(reader: HeadReader, prompts: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """What the heads of every layer write in the mean over all positions of some prompts: [heads, d] by layer."""
    totals: dict[int, torch.Tensor] = {}

    def note(inputs: AttentionInput, attend: Attend) -> torch.Tensor:
        output = attend(inputs)
        totals[inputs.layer] = totals.get(inputs.layer, 0) + output.double().sum((0, 1))
        return output

    with readable_attention(reader.model), intervening(reader.model, reader.sites, note), torch.no_grad():
        for tokens in prompts:
            reader.model(tokens.to(reader.device), use_cache=False)
    positions = sum(tokens.numel() for tokens in prompts)
    return {layer: total / positions for layer, total in totals.items()}


@contextmanager
def silenced(reader: HeadReader, heads: Sequence[Head], means: dict[int, torch.Tensor]) -> Iterator[None]:
    """A context in which some heads write their mean output, whatever they see."""

    def replace_output(inputs: AttentionInput, attend: Attend) -> torch.Tensor:
        output = attend(inputs).clone()
        chosen = [head for layer, head in heads if layer == inputs.layer]
        output[:, :, chosen] = means[inputs.layer][chosen].to(output)
        return output

    hooks = dict.fromkeys({layer for layer, _ in heads}, replace_output)
    with readable_attention(reader.model), intervening(reader.model, reader.sites, hooks):
        yield


def _small(rows: pd.DataFrame) -> pd.DataFrame:
    """Scores in single precision."""
    numbers = rows.select_dtypes("float64").columns
    return rows.astype(dict.fromkeys(numbers, "float32")).reset_index(drop=True)


def _symbolic_draws(drawn: pd.DataFrame, moved: pd.DataFrame | None) -> pd.DataFrame:
    """Of every draw of a null the heads that are pure symbolic at their layer; a draw without any has a row without scores."""
    keys = ["null_name", "draw", "prompt", *HEAD]
    columns = [*keys, *SCORES, *INPUT_SCORES, "covered_share"]
    means = drawn.groupby(["null_name", "draw", *HEAD])[SCORES].mean()
    pure = means[(means[SCORES[0]] <= 0.1) & (means[SCORES[1]] >= 0.9)].index
    rows = drawn[pd.MultiIndex.from_frame(drawn[["null_name", "draw", *HEAD]]).isin(pure)]
    beside = pd.DataFrame(columns=[*keys, *INPUT_SCORES, "covered_share"]) if moved is None else moved
    found = rows.merge(beside[[*keys, *INPUT_SCORES, "covered_share"]], on=keys, how="inner")[columns]
    empty = drawn[["null_name", "draw"]].drop_duplicates()
    empty = empty[~empty["draw"].isin(found["draw"])].assign(prompt=0, layer=0, head=0)
    return _small(
        pd.concat([found, empty.reindex(columns=columns)], ignore_index=True).astype(
            dict.fromkeys(columns[5:], "float64")
        )
    )


def show(found: TurnoverStudy) -> None:
    """The main tables, as text."""
    with pd.option_context("display.width", 220, "display.max_columns", 40, "display.precision", 3):
        print(found.tasks.iloc[:, :12].to_string(index=False))
        print(found.turnovers.T.to_string())
        for size in found.sizes:
            print(f"{size} facts, by layer")
            print(found.by_layer(size).to_string(index=False))
        if "causes" in found.tables and len(found.causes):
            causes = found.causes.assign(control=found.causes["draw"] >= 0)
            print(
                causes.groupby(["size", "silenced", "control"])[["heads", "accuracy", "loss"]]
                .agg(["mean", "min", "max"])
                .to_string()
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--out", help="folder of the run")
    parser.add_argument("--device")
    parser.add_argument("--reduced", action="store_true", help="fewer sizes and prompts, for two cores")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int)
    parser.add_argument("--prompts", type=int, help="prompts that are permuted")
    parser.add_argument("--seconds", type=float, help="begin no further part after so many")
    parser.add_argument("--sizes", nargs="+", type=int)
    parser.add_argument("--permuted", nargs="+", type=int)
    parser.add_argument("--batch-tokens", type=int)
    options = parser.parse_args()
    changes: dict[str, Any] = {"seed": options.seed, "batch_tokens": options.batch_tokens}
    if options.draws:
        changes["draws"] = options.draws
    if options.prompts:
        changes["permuted_prompts"] = options.prompts
    if options.sizes:
        changes["sizes"] = tuple(options.sizes)
    if options.permuted:
        changes |= {
            "permuted": tuple(options.permuted),
            "null_sizes": tuple(options.permuted),
            "depth_size": options.permuted[0],
        }
    plan = replace(REDUCED if options.reduced else Plan(), **changes)
    began = time.perf_counter()
    subject = rs.load(options.model, device=options.device)
    print(f"loaded in {time.perf_counter() - began:.0f} s on {subject.device}", flush=True)
    show(study(subject, plan, options.out, options.parts, options.seconds))
    print(f"{time.perf_counter() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
