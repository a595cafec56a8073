"""Measure the figures that P1's claims are judged by, of one language model, and keep them with rotoscope.

python -m benchmarks.language_models smollm2 --name smollm2 --draws 39            # every setting
python -m benchmarks.language_models model.gguf --name qwen2.5-coder-0.5b --device cuda --draws 39
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from rotoscope.ledger.language_figures import SETTINGS, STORED, measure_language


def main() -> None:
    """Measure, and copy the finished run beside the stored ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--name", required=True, help="the folder among the stored runs")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--draws", type=int, default=39, help="draws of both nulls")
    parser.add_argument("--controls", type=int, default=19, help="random groups of heads beside the gated ones")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=STORED / "language_figures")
    args = parser.parse_args()
    began, folder = time.perf_counter(), args.out / args.name
    run = measure_language(
        args.model,
        settings={name: SETTINGS[name] for name in args.settings},
        draws=args.draws,
        controls=args.controls,
        device=args.device,
        out=folder,
    )
    (folder / "manifest.txt").unlink(missing_ok=True)
    shutil.rmtree(folder / "pieces", ignore_errors=True)
    print(f"{folder}: {len(run.figures)} figures in {time.perf_counter() - began:.0f} s")
    print(run.accuracy.to_string(index=False))


if __name__ == "__main__":
    main()
