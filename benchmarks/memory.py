"""The memory a profile is expected to take, against what it takes in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.measure import Report, peak_gigabytes

FACTOR = 1.5
PROGRAM = """
import json, torch, transformers as tf, rotoscope as rs
from rotoscope.analysis.estimate import estimate
from rotoscope.settings import ProfileSettings
case = json.loads('{case}')
if "model" in case:
    subject = rs.load(case["model"], device="cpu")
else:
    width, heads = case["width"], case["heads"]
    config = tf.LlamaConfig(
        hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width, num_hidden_layers=2, vocab_size=1000,
        max_position_embeddings=65536,
    )
    subject = rs.load(tf.AutoModelForCausalLM.from_config(config).eval())
n, count = case["tokens"], case.get("blocks")
long = (n - 2) // count if count else 0
spans = [(1 + k * long, 1 + (k + 1) * long) for k in range(count)] if count else None
prompts = rs.tasks.from_tokens(torch.randint(3, 900, (case.get("prompts", 1), n)), spans)
settings = ProfileSettings(null=case.get("null", "none"), examples=False, frequencies=case.get("frequencies", False))
said = estimate(subject, prompts, settings).gigabytes
if {run}:
    rs.profile(subject, prompts, settings, show_progress=False)
else:
    print(said); raise SystemExit
"""
CASES: list[dict[str, int | str]] = [
    {"width": 256, "heads": 8, "tokens": 64},
    {"width": 256, "heads": 8, "tokens": 256, "prompts": 16},
    {"width": 256, "heads": 8, "tokens": 1024},
    {"width": 256, "heads": 8, "tokens": 4096},
    {"width": 256, "heads": 8, "tokens": 16384, "blocks": 32},
    {"width": 256, "heads": 8, "tokens": 16384, "blocks": 512},
    {"width": 512, "heads": 16, "tokens": 4096, "blocks": 512},
    {"width": 256, "heads": 8, "tokens": 512, "frequencies": True},
    {"model": "smollm2", "tokens": 512, "prompts": 2, "blocks": 32},
    {"model": "smollm2", "tokens": 512, "prompts": 2, "blocks": 32, "null": "random"},
    {"model": "smollm2", "tokens": 2048, "blocks": 32},
]


def said_gigabytes(program: str) -> float:
    """What a program prints, in a process of its own."""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(found.stdout.split()[-1])


def main() -> None:
    """Every case twice: once to hear what is expected, once to see what is taken."""
    report = Report("memory of a profile", "case", "expected GB", "taken GB", "factor")
    for case in CASES:
        told, runs = (
            PROGRAM.replace("{case}", json.dumps(case)).replace("{run}", str(run)) for run in (False, True)
        )
        expected, taken = said_gigabytes(told), peak_gigabytes(runs)
        factor = expected / taken
        words = ", ".join(f"{key} {value}" for key, value in case.items())
        report.row(
            words,
            f"{expected:.2f}",
            f"{taken:.2f}",
            f"{factor:.2f}",
            target=f"within {FACTOR}",
            met=1 / FACTOR < factor < FACTOR,
        )
    report.show()


if __name__ == "__main__":
    main()
