"""`python -m tests.pins [NAME ...]` compares with the golden values; `--write` makes them again."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from tests.pins.cases import CASES
from tests.pins.checking import check

PROCESSES = 2
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
"""In the processes and in the commands that they run: results depend on the order of sums."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pins", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"cases, by default all: {', '.join(CASES)}")
    parser.add_argument(
        "--write", action="store_true", help="make the golden values again instead of comparing"
    )
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(CASES))
    if unknown:
        parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    names = [name for name in CASES if not options.names or name in options.names]
    os.environ |= ONE_THREAD
    began, outcomes = time.monotonic(), []
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(check, name, options.write) for name in names]):
            outcome = future.result()
            outcomes.append(outcome)
            times = f"{outcome.seconds:6.1f} s, {outcome.processor_seconds:.1f} s of processor time"
            print(f"{outcome.word:8} {outcome.name:16} {times}", flush=True)
            for sentence in outcome.sentences:
                print(f"    {sentence}", flush=True)
    wrong = [outcome.name for outcome in outcomes if outcome.word in ("differs", "failed")]
    work = sum(outcome.processor_seconds for outcome in outcomes)
    print(f"{len(names)} pins in {time.monotonic() - began:.0f} s ({work:.0f} s of processor time)", end="")
    print(f": {', '.join(sorted(wrong))} not as pinned" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
