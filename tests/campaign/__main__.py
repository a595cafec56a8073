"""`python -m tests.campaign --budget 1h --seed 0`: the whole campaign, or one part, or one case again."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}

from tests.campaign.damage import remove
from tests.campaign.runner import Finding, Part, Tally, attempt, run_parts
from tests.campaign.scratch import Place, RefusedError, enter

NAMES = ("run_folders", "kills", "commands", "model_folders", "gguf", "faults", "requests", "payloads")
CROWD_SHARE = 1 / 12
"""Of the budget: five minutes of an hour go to two hundred connections at once."""
REST_S = 30.0
"""What is made first: a run of every kind."""


def main() -> int:
    asked = _asked()
    seconds = _seconds(asked.budget)
    place = Place()
    print(f"campaign with seed {asked.seed} for {asked.budget} in {place.base}", flush=True)
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            enter(place.inside)
            _inside(place.inside, asked, seconds)
            code = 0
        except RefusedError as problem:
            print(f"campaign: {problem}", file=sys.stderr)
            code = 3
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    touched = place.touched()
    result = place.inside / "result.json"
    found: dict[str, Any] = json.loads(result.read_text()) if result.is_file() else {"parts": {}}
    found |= {
        "seed": asked.seed,
        "budget": asked.budget,
        "seconds": round(time.monotonic() - began),
        "touched": touched,
    }
    sound = _show(found) and code == 0 and not touched
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    remove(place.base)
    return 0 if sound else code or 1


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--budget", default="1h", help="how long: 90s, 20m, 1h, 8h")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", nargs="+", choices=(*NAMES, "crowd"), default=[*NAMES, "crowd"], metavar="PART"
    )
    parser.add_argument("--case", help="one case again, as PART:NUMBER")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a file for the counts and findings, as JSON")
    return parser.parse_args()


def _seconds(budget: str) -> float:
    fits = re.fullmatch(r"(\d+)([smh])", budget)
    if fits is None:
        raise SystemExit(f"campaign: a budget is written 90s, 20m or 1h, not {budget}")
    return float(fits[1]) * {"s": 1, "m": 60, "h": 3600}[fits[2]]


def _inside(place: Path, asked: argparse.Namespace, seconds: float) -> None:
    """Everything that happens within the fence."""
    import pyarrow as pa
    import torch

    from tests.campaign.kinds import make_stock

    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    stock = place / "stock"
    make_stock(stock)
    if asked.case is not None:
        name, number = asked.case.split(":")
        (place / name).mkdir()
        os.chdir(place / name)
        part = _part(name)
        what = attempt(part, part.prepare(place / name, stock), int(number), asked.seed)
        tallies = {
            name: Tally(1, findings=[] if what is None else [Finding(name, int(number), asked.seed, what)])
        }
    else:
        rest = max(1.0, seconds - REST_S)
        tallies = {}
        if "crowd" in asked.only:
            from tests.campaign.requests import crowd

            tallies["crowd"] = crowd(place / "crowd", stock, rest * CROWD_SHARE, asked.seed)
            rest *= 1 - CROWD_SHARE
        parts = [_part(name) for name in NAMES if name in asked.only]
        tallies |= run_parts(parts, place, stock, asked.seed, rest, asked.workers) if parts else {}
    (place / "result.json").write_text(
        json.dumps({"parts": {name: one.stored() for name, one in tallies.items()}})
    )


def _part(name: str) -> Part:
    return importlib.import_module(f"tests.campaign.{name}").PART


def _show(found: dict[str, Any]) -> bool:
    """Counts and findings, for people; whether there were none."""
    clean = True
    for name, part in found["parts"].items():
        extra = f", {part['extra']} kills" if name == "kills" else ""
        print(
            f"{name}: {part['cases']:,} cases{extra} in {part['seconds']:.0f} s, {len(part['findings'])} findings"
        )
        for one in part["findings"]:
            clean = False
            print(f"  {one['what']}\n    {one['again']}")
    whole = sum(
        part["cases"] for name, part in found["parts"].items() if name not in ("kills", "faults", "crowd")
    )
    print(f"{whole:,} bad inputs, seed {found['seed']}, {found['seconds']} s")
    print(f"outside the scratch folder: {', '.join(found['touched'][:10]) or 'nothing touched'}")
    return clean


if __name__ == "__main__":
    sys.exit(main())
