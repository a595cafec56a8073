"""The trainings that the ledger stores and that want a GPU: twins on shuffled answers, long letter trainings, a language model.

    python3 -m benchmarks.gpu_study all --tokens enwik8.npz --seconds 560 --out results
    python3 -m benchmarks.gpu_study twins --out results

`twins`: three number and three letter models of the paper's preset, trained as one on shuffled answers. `letter`: three letter
models, 67,500 steps of 64, and their accuracy on up to 5,000 tokens. `language`: examples/train_language_model.py, seeds and
controls. `all` runs the three beside one another on one GPU, through NVIDIA's multi-process service where that can be
started. What is kept are tables, no weights: a .tar for each part.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_language_model.py"
TABLES = (".json", ".parquet", ".csv")
SMALL = {"train_sequences": 500, "validation_sequences": 40, "test_sequences": 40, "layers": 2, "width": 32}
SMALL |= {"steps": 4, "batch": 16, "watch_every": 2, "checkpoints": 2}
"""What `--small` changes, to try the whole on a CPU."""


def twins(out: Path, small: bool) -> None:
    """Models that are trained like the stored ones, on answers that say nothing about the paths."""
    import rotoscope as rs

    runs = rs.lab.train(
        ("number", "letter"), "mini" if small else "paper", seeds=2 if small else 3, answers="shuffled",
        on_evaluate=rs.experiments.Watch(8 if small else 200), show_progress=False, **(SMALL if small else {}),
    )  # fmt: skip
    for run in runs:
        run.save(out / "twins" / f"{run.task}-{run.run.settings['seed']}", overwrite=True)
        print(run, {name: round(seconds) for name, seconds in run.run.timings.items()}, flush=True)


def letter(out: Path, small: bool) -> None:
    """Letter models of a long training, and how far they generalise."""
    import rotoscope as rs

    changes = SMALL if small else {"steps": 67_500, "batch": 64, "watch_later": 1_125, "checkpoints": 2}
    scratch = out / "letter-weights"
    runs = rs.lab.train(
        ("letter",), "mini" if small else "paper", seeds=2 if small else 3, out=scratch, overwrite=True,
        on_evaluate=rs.experiments.Watch(8 if small else 200), show_progress=False, **changes,
    )  # fmt: skip
    steps = changes["steps"]
    models = {f"letter-{k}-{steps}": scratch / f"letter-{k}" / f"checkpoint-{steps}" for k in range(len(runs))}
    for run in runs:
        run.save(out / "letter" / f"letter-{run.run.settings['seed']}", overwrite=True)
        print(run, {name: round(seconds) for name, seconds in run.run.timings.items()}, flush=True)
    usual = rs.experiments.LengthsSettings()
    lengths = replace(usual, lengths=(13, 25), inputs=8) if small else usual
    measured = rs.experiments.measure_lengths(
        models, lengths, out=out / "letter" / "lengths", overwrite=True, show_progress=False
    )
    print(measured.accuracy.groupby(["model", "length"])["accuracy"].mean().unstack(), flush=True)
    shutil.rmtree(scratch)


PARTS: dict[str, Callable[[Path, bool], None]] = {"twins": twins, "letter": letter}


def run_all(chosen: argparse.Namespace) -> None:
    """Every part in a process of its own; those that do not end in time are stopped, and what is finished is kept."""
    began = time.monotonic()
    chosen.out.mkdir(parents=True, exist_ok=True)
    scratch = chosen.out.resolve() / "parts"
    with multi_process_service() as (environment, shared):
        processes = {}
        for name in chosen.parts:
            if name == "letter" and len(chosen.parts) > 1 and not (shared or chosen.small):
                print(
                    "letter: left out, since parts that take turns would not end in time; run it alone",
                    flush=True,
                )
                continue
            own = environment | ({"CUDA_MPS_CLIENT_PRIORITY": "1"} if name == "letter" else {})
            with (chosen.out / f"{name}.log").open("wb") as log:
                processes[name] = subprocess.Popen(
                    command(name, chosen, scratch), stdout=log, stderr=log, env=own
                )
        while processes:
            time.sleep(0.5)
            late = time.monotonic() - began > chosen.seconds
            for name, process in list(processes.items()):
                if late and process.poll() is None:
                    process.kill()
                    process.wait()
                if process.poll() is not None:
                    del processes[name]
                    print(
                        f"{name}: ended with {process.returncode} after {time.monotonic() - began:.0f} s",
                        flush=True,
                    )
                    show_end(chosen.out / f"{name}.log")
                    collected_tables(scratch / name, chosen.out / f"{name}.tar")
    shutil.rmtree(scratch, ignore_errors=True)


def command(name: str, chosen: argparse.Namespace, scratch: Path) -> list[str]:
    """What one part runs."""
    if name != "language":
        small = ["--small"] if chosen.small else []
        return [sys.executable, "-m", "benchmarks.gpu_study", name, "--out", str(scratch), *small]
    sizes = ["--preset", "tiny", "--steps", "4", "--points", "2"] if chosen.small else ["--preset", "small"]
    budget = ["--seconds", str(min(chosen.seconds, chosen.language_seconds)), "--controls", "shuffled", "fast"]
    source = ["--tokens", str(chosen.tokens), "--out", str(scratch / name)]
    return [sys.executable, str(EXAMPLE), *source, *sizes, *budget, "--seeds", *map(str, chosen.seeds)]


def show_end(log: Path) -> None:
    lines = log.read_text(errors="replace").splitlines()[-25:]
    print("\n".join(f"    {line}" for line in lines), flush=True)


def collected_tables(folder: Path, file: Path) -> None:
    """The tables of a folder in one file, without weights and unfinished pieces."""
    with tarfile.open(file, "w") as archive:
        for path in sorted(folder.rglob("*")):
            place = path.relative_to(folder)
            if path.suffix in TABLES and "pieces" not in place.parts:
                archive.add(path, place)
    print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB", flush=True)


@contextmanager
def multi_process_service() -> Iterator[tuple[dict[str, str], bool]]:
    """The environment in which processes share a GPU's cores, and True, where the service can be started; else the usual one."""
    usual, control = dict(os.environ), shutil.which("nvidia-cuda-mps-control")
    if control is None:
        print("no multi-process service: the parts take turns on the GPU", flush=True)
        yield usual, False
        return
    folder = Path("/tmp/rotoscope-mps")
    folder.mkdir(exist_ok=True)
    shared = usual | {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    try:
        subprocess.run([control, "-d"], env=shared, timeout=20, check=True)
        probe = "import torch; print(torch.ones(4, device='cuda').sum())"
        subprocess.run([sys.executable, "-c", probe], env=shared, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        print(
            f"the multi-process service does not work ({problem}): the parts take turns on the GPU", flush=True
        )
        _quit(control, shared)
        yield usual, False
        return
    print("the parts share the GPU through the multi-process service", flush=True)
    try:
        yield shared, True
    finally:
        _quit(control, shared)


def _quit(control: str, environment: dict[str, str]) -> None:
    try:
        subprocess.run([control], input=b"quit\n", env=environment, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as problem:
        print(f"the multi-process service could not be stopped: {problem}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.gpu_study", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--tokens", type=Path, help="of the language model: token ids (.npz), tokenizer.json beside them"
    )
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, "language"], default=[*PARTS, "language"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="of the language model")
    parser.add_argument("--seconds", type=float, default=560.0, help="stop what has not ended by then")
    parser.add_argument(
        "--language-seconds", type=float, default=330.0, help="begin no language model that ends later"
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try it on a CPU")
    chosen = parser.parse_args(arguments)
    if chosen.part != "all":
        PARTS[chosen.part](chosen.out, chosen.small)
    elif "language" in chosen.parts and chosen.tokens is None:
        parser.error("the language model needs --tokens")
    else:
        run_all(chosen)


if __name__ == "__main__":
    main()
