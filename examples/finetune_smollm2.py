"""Fine-tune SmolLM2 on the binding task, and ask which of its heads changed.

Six facts, "Greg likes crimson. Joel likes magenta. ...", and a question about one of them, which SmolLM2 mostly fails. Only the
weights of its attention are trained, on the answers, with transformers' Trainer and a monitor among its callbacks. All heads are
profiled before and after on the same held-out prompts and compared prompt by prompt. A second fine-tuning, on colours drawn at random
from the facts, shows what any such training does to heads.

    python examples/finetune_smollm2.py --out runs/finetuned
"""

from __future__ import annotations

import argparse
import copy
import random
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from matplotlib.figure import Figure

import rotoscope as rs
from rotoscope.experiments.compare import Comparison, Sample, compare
from rotoscope.experiments.profile.plane import corners
from rotoscope.plotting.palette import LINE_COLOURS
from rotoscope.plotting.style import TEXT_WIDTH, caption, drawing, shared_legend
from rotoscope.scores.classes import GAMMA

ANSWERS = ("right", "random")
BATCH = 8


def facts(subject: rs.Subject, count: int, seed: int) -> rs.tasks.Prompts:
    """Prompts of six facts and a question, all of the same number of tokens."""
    return rs.tasks.binding(
        subject, pairs=6, count=count, seed=seed, prefix="fact", distinct=True, equal_length=True
    )


def training_data(subject: rs.Subject, count: int, answers: str) -> list[dict[str, torch.Tensor]]:
    """Every prompt once, with its answer or with any colour of its facts; only that token counts for the loss."""
    prompts = facts(subject, count, seed=0)
    dice, rows = random.Random(0), []
    for prompt in prompts:
        [answer] = prompt.answers
        if answers == "random":
            assert prompt.blocks is not None
            assert prompt.asked is not None
            starts = [begin for begin, _ in prompt.blocks.spans]
            colour = (
                prompt.tokens.index(answer, starts[prompt.asked]) - starts[prompt.asked]
            )  # its place in a fact
            answer = prompt.tokens[dice.choice(starts) + colour]
        whole = torch.tensor([*prompt.tokens, answer])
        rows.append(
            {"input_ids": whole, "labels": whole.where(torch.arange(len(whole)) == len(whole) - 1, -100)}
        )
    return rows


def finetune(subject: rs.Subject, answers: str, held_out: rs.tasks.Prompts, wanted: argparse.Namespace) -> Any:
    """The model with its attention trained, watched from the first step to the last."""
    model = copy.deepcopy(subject.model)
    for name, weight in model.named_parameters():
        weight.requires_grad = "self_attn" in name
    monitor = rs.HeadMonitor(
        held_out, every=wanted.every, out=wanted.out / f"watched_{answers}", name=subject.name, overwrite=True
    )
    arguments = tf.TrainingArguments(
        str(wanted.out / "trainer"),
        max_steps=wanted.steps,
        per_device_train_batch_size=BATCH,
        learning_rate=2e-4,
        warmup_steps=5,
        logging_steps=wanted.every,
        save_strategy="no",
        report_to=[],
        seed=0,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    data = training_data(subject, BATCH * wanted.steps, answers)
    tf.Trainer(model, arguments, train_dataset=data, callbacks=[monitor]).train()
    return model


def profiled(model: Any, subject: rs.Subject, prompts: rs.tasks.Prompts, out: Path) -> rs.Profile:
    """All heads of a model; the run is kept, so that `rotoscope report BEFORE AFTER` shows both."""
    named = rs.load((model, subject.tokenizer), name=out.name)
    found = rs.profile(named, prompts, null="none", examples=False)
    found.save(out, overwrite=True)
    return found


def told(before: rs.Profile, after: rs.Profile) -> Comparison:
    """Print what changed, and which heads changed class by more than prompts do by themselves."""
    [tau] = before.heads["tau"].unique()
    found = compare(Sample.of(before, tau), Sample.of(after, tau))
    print(f"{after.run.name}: accuracy {before.accuracy:.2f} before, {after.accuracy:.2f} after")
    for words in found.words():
        print(f"  {words}")
    heads = found.heads[found.heads["differs"] & (found.heads["first_class"] != found.heads["second_class"])]
    for head in heads.itertuples():
        print(f"    {head.layer}:{head.head} was {head.first_class}, is {head.second_class}", end="")
        print(f" (positional {head.first_positional_score:.2f} to {head.second_positional_score:.2f},", end="")
        print(f" symbolic {head.first_symbolic_score:.2f} to {head.second_symbolic_score:.2f})")
    return found


def drawn(found: dict[str, Comparison]) -> Figure:
    """From where to where the heads went that differ, in the plane: a panel for each fine-tuning."""
    with drawing(TEXT_WIDTH, 3.6, 1, len(found), sharey=True) as (figure, panels):
        for axes, (answers, comparison) in zip(panels, found.items(), strict=True):
            heads = comparison.heads[comparison.heads["differs"]]
            corners(axes, GAMMA)
            for kind, rows in heads.groupby("second_class"):
                start = rows["first_positional_score"], rows["first_symbolic_score"]
                end = rows["second_positional_score"], rows["second_symbolic_score"]
                look = {
                    "color": LINE_COLOURS[kind],
                    "width": 0.004,
                    "angles": "xy",
                    "scale_units": "xy",
                    "scale": 1,
                }
                axes.quiver(*start, end[0] - start[0], end[1] - start[1], label=f"{kind} after", **look)
            axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), aspect="equal", xlabel="positional score")
            axes.set_title(f"{answers} answers: {len(heads)} of {len(comparison.heads)} heads")
        panels[0].set_ylabel("symbolic score")
        shared_legend(figure, panels[0])
    return caption(
        figure, "heads that differ by more than prompts do by themselves, from before to after the fine-tuning"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/finetuned"))
    parser.add_argument("--answers", nargs="+", choices=ANSWERS, default=ANSWERS, help="to train on")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5, help="steps between two looks at the heads")
    parser.add_argument("--prompts", type=int, default=24, help="held-out prompts to score heads on")
    wanted = parser.parse_args(arguments)
    subject = rs.load("smollm2", dtype="float32")
    held_out = facts(subject, wanted.prompts, seed=1)
    before = profiled(subject.model, subject, held_out, wanted.out / "before")
    found = {}
    for answers in wanted.answers:
        model = finetune(subject, answers, held_out, wanted)
        after = profiled(model, subject, held_out, wanted.out / f"after_{answers}_answers")
        found[answers] = told(before, after)
    [file] = rs.figures.save(drawn(found), wanted.out / "changed_heads", formats=["png"])
    print(
        f"{file} is drawn; rotoscope report {wanted.out}/before {wanted.out}/after_right_answers compares the two"
    )


if __name__ == "__main__":
    main()
