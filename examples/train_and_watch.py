"""Train a small Llama from scratch, and watch its heads become positional or symbolic.

It is shown eight cards, each with a letter and a number, and is asked one of two questions:

    c7 a2 k11 f3 b9 l1 h12 e5 k?   the number of card k: 11. A head can follow the letter, wherever its card lies.
    c7 a2 k11 f3 b9 l1 h12 e5 3!   the number of the third card from the end: 1. A head can count, whatever the cards are.

transformers' own Trainer trains it, with a monitor among its callbacks that asks both. Then a twin is
trained in the same way on answers that are drawn at random from the cards: there is nothing to learn but to name one of them.

    python examples/train_and_watch.py --out runs/cards
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
import transformers as tf
from matplotlib.figure import Figure

import rotoscope as rs
from rotoscope.plotting.palette import INK, NULL, SERIES
from rotoscope.plotting.style import TEXT_WIDTH, caption, drawing_grid, shared_legend

KINDS = ("lookup", "place")
ANSWERS = ("right", "random")
LETTERS, NUMBERS, CARDS = 12, 12, 8
"""Cards are tokens 0 to 143; then come the letters asked for, the places asked for, and the answers."""
LETTER_ASKED = LETTERS * NUMBERS
PLACE_ASKED = LETTER_ASKED + LETTERS
ANSWER = PLACE_ASKED + CARDS
WORDS = ANSWER + NUMBERS


def cards(count: int, kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Questions of a kind ("lookup" or "place") as token ids [count, 9], and their answers [count]."""
    generator = torch.Generator().manual_seed(seed)
    letters = torch.rand(count, LETTERS, generator=generator).argsort(1)[:, :CARDS]
    numbers = torch.rand(count, NUMBERS, generator=generator).argsort(1)[:, :CARDS]
    asked = torch.randint(CARDS, (count, 1), generator=generator)
    question = LETTER_ASKED + letters.gather(1, asked) if kind == "lookup" else PLACE_ASKED + CARDS - 1 - asked
    tokens = torch.cat((letters * NUMBERS + numbers, question), dim=1)
    return tokens, ANSWER + numbers.gather(1, asked)[:, 0]


def training_data(count: int, answers: str, seed: int) -> list[dict[str, torch.Tensor]]:
    """As many lookups as places, every sequence once; only the answer counts for the loss."""
    rows = []
    for k, kind in enumerate(KINDS):
        tokens, right = cards(count // 2, kind, seed=10 * seed + k)
        if answers == "random":
            generator = torch.Generator().manual_seed(10 * seed + 2 + k)
            drawn = torch.randint(CARDS, (len(tokens), 1), generator=generator)
            right = ANSWER + tokens.gather(1, drawn)[:, 0] % NUMBERS
        whole = torch.cat((tokens, right[:, None]), dim=1)
        labels = torch.where(torch.arange(CARDS + 2) == CARDS + 1, whole, -100)
        rows += [{"input_ids": row, "labels": label} for row, label in zip(whole, labels, strict=True)]
    return rows


def held_out(kind: str, count: int) -> rs.tasks.Prompts:
    """What the heads are scored on: questions that were not trained on. Every card is a block that can be swapped."""
    tokens, right = cards(count, kind, seed=1_000_000)
    return replace(rs.tasks.from_tokens(tokens, answers=right.tolist()), task=kind, chance=1 / CARDS)


def train(answers: str, chosen: argparse.Namespace) -> dict[str, rs.experiments.Dynamics]:
    """One training, watched; its runs by kind of question, which are also folders in OUT/ANSWERS."""
    tf.set_seed(chosen.seed)
    model = tf.LlamaForCausalLM(
        tf.LlamaConfig(
            vocab_size=WORDS,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=16,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    folder = chosen.out / answers
    monitor = rs.HeadMonitor(
        {kind: held_out(kind, chosen.prompts) for kind in KINDS},
        every=chosen.every,
        out=folder,
        name=f"{answers} answers",
        overwrite=True,
    )
    arguments = tf.TrainingArguments(
        str(folder / "trainer"),
        max_steps=chosen.steps,
        per_device_train_batch_size=64,
        learning_rate=2e-3,
        warmup_steps=50,
        logging_steps=chosen.every,
        save_strategy="no",
        report_to=[],  # or "tensorboard", "trackio", "wandb": the heads' numbers are in their logs, too
        seed=chosen.seed,
        use_cpu=True,  # so small a model gains nothing from a GPU
        disable_tqdm=True,
    )
    data = training_data(64 * chosen.steps, answers, chosen.seed)
    tf.Trainer(model, arguments, train_dataset=data, callbacks=[monitor]).train()
    return {kind: rs.open(folder / kind) for kind in KINDS}


def leans(table: pd.DataFrame) -> pd.Series:
    """How a head acts, from -1 (purely symbolic) to 1 (purely positional), by step, layer and head."""
    rows = table.set_index(["step", "layer", "head"])
    return rows["positional_score"] - rows["symbolic_score"]


def moved(lookup: rs.experiments.Dynamics, place: rs.experiments.Dynamics) -> pd.Series:
    """By step, how much more a head leans to position when it is asked for a place than in a lookup: the mean over heads."""
    return (leans(place.scores) - leans(lookup.scores)).groupby("step").mean()


def told(answers: str, runs: dict[str, rs.experiments.Dynamics]) -> None:
    """Print how a training ended, and when its heads became pure."""
    print(f"Trained on {answers} answers")
    for kind, run in runs.items():
        assert run.accuracy is not None
        heads = run.pure_from()
        pure = heads.dropna(subset=["first_pure"])
        print(
            f"  {kind}: accuracy {run.accuracy['accuracy'].iloc[-1]:.2f}; {len(pure)} of {len(heads)} heads pure"
        )
        for head in pure.itertuples():
            print(f"    {head.layer}:{head.head} {head.head_class}, first at step {head.first_pure}")
    print(f"  the question moves heads by {moved(**runs).iloc[-1]:+.2f}")


def drawn(trainings: dict[str, dict[str, rs.experiments.Dynamics]]) -> Figure:
    """Accuracy, every head, and how far the question moves heads: a column for each training."""
    labels = ("accuracy", "positional - symbolic,\nevery head", "place minus lookup,\nmean over heads")
    with drawing_grid(TEXT_WIDTH, 5.4, 3, len(trainings), sharex=True, sharey="row") as (figure, panels):
        for axes, label in zip(panels[:, 0], labels, strict=True):
            axes.set_ylabel(label)
        for (answers, runs), (above, middle, below) in zip(trainings.items(), panels.T, strict=True):
            above.set_title(f"trained on {answers} answers")
            for (kind, run), colour in zip(runs.items(), SERIES, strict=False):
                assert run.accuracy is not None
                above.plot(run.accuracy["step"], run.accuracy["accuracy"], color=colour)
                middle.plot(leans(run.scores).unstack(["layer", "head"]), color=colour, lw=1)
                middle.plot([], color=colour, label=f"asked for a {kind}")
            above.axhline(1 / CARDS, color=NULL, ls=":", lw=1)
            below.plot(moved(**runs), color=INK)
            below.set_xlabel("training step")
        shared_legend(figure, middle)
    return caption(figure, f"{len(run.pure_from())} heads; dotted: chance")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/cards"))
    parser.add_argument("--answers", nargs="+", choices=ANSWERS, default=ANSWERS, help="to train on")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=25, help="steps between two looks at the heads")
    parser.add_argument("--prompts", type=int, default=64, help="prompts of each kind to score heads on")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    trainings = {answers: train(answers, chosen) for answers in chosen.answers}
    for answers, runs in trainings.items():
        told(answers, runs)
    [file] = rs.figures.save(drawn(trainings), chosen.out / "cards", formats=["png"])
    print(f"{file} is drawn; rotoscope serve {chosen.out} shows the runs")


if __name__ == "__main__":
    main()
