"""The commands of the README and of the documentation, run in a fresh clone: minutes of work.

Those of docs/story.md are run by tests/test_story.py, which also looks at what they print."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import rotoscope as rs
from docs.ledger_page import COLUMNS, claim_cells
from rotoscope.cli import app
from tests.server import Scripted, refused, scripted
from tests.tiny_models import tiny

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELLS = ("bash", "sh", "shell")
OTHER = ("python", "toml")  # languages whose blocks hold no commands
PROGRAM = r"(?:rotoscope|make|python3?|pip|ssh) \S"

# What is shown, what is run instead, and why. What stays the same is a file that the clone is given.
STAND_INS = {
    "path/to/model": ("path/to/model", "a tiny llama for the user's own model"),
    "google/gemma-2-2b-it": ("path/to/model", "a tiny llama for weights from the hub"),
    "EleutherAI/pythia-70m --revisions 'step*'": (
        "path/to/model --inputs 2",
        "a tiny llama for weights from the hub",
    ),
    "prompt.txt": ("prompt.txt", "a prompt of the test's for the user's own"),
    "sweep.toml": ("sweep.toml", "a small sweep of the test's for the user's own"),
    "examples/settings.toml": ("examples/settings.toml --dry-run", "minutes of SmolLM2"),
    "--on ray --address 10.0.0.1:6379": ("--dry-run", "no cluster is here"),
    "--endpoint http://localhost:8080/v1": ("--endpoint {server}", "a local server for the endpoint"),
    "--endpoint https://SERVER/v1": ("--endpoint {server}", "a local server for the endpoint"),
    "--model NAME": ("--model scripted", "a local server for the endpoint"),
    "--model qwen2.5-coder-0.5b": ("--model path/to/model", "a tiny llama for weights that are not here"),
    "benchmarks.turnover qwen2.5-coder-0.5b --out runs/turnover/qwen2.5-coder-0.5b": (
        "benchmarks.turnover --help",
        "what it takes, for minutes of a GPU",
    ),
    "benchmarks.turnover smollm2 --reduced --out runs/turnover/smollm2": (
        "benchmarks.turnover --help",
        "what it takes, for minutes of work",
    ),
    "make campaign": ("make --dry-run campaign", "an hour of work"),
    "--pairs 32 --prompts 16": ("--pairs 8 --prompts 2 --null none", "fewer and shorter prompts"),
    "profile smollm2 --measures": (
        "profile smollm2 --pairs 8 --prompts 2 --null none --measures",
        "fewer and shorter prompts",
    ),
    "theory NAME": ("theory exclusion", "one statement for any"),
    "runs/second": ("runs/demo", "the demo for the user's second run"),
    "runs/number-paper-0": ("runs/number-mini-0 --lengths 17 40", "a mini run for one that needs a GPU"),
    "train number --preset paper": (
        "train number --preset paper --steps 20 --batch 8 --layers 2 --width 32",
        "a tiny model for one that needs a GPU",
    ),
    "train number letter --preset paper --seeds 3": (
        "train number letter --preset paper --seeds 3 --steps 20 --batch 8 --layers 2",
        "tiny models for some that need a GPU",
    ),
    "reproduce p2 --cost gpu": ("reproduce p2-hop-order --cost quick", "one claim for all that need a GPU"),
    "canonical all --preset paper": (
        "canonical all --preset paper --steps 50 --seeds 1",
        "fewer steps and seeds",
    ),
    "examples/train_and_watch.py": (
        "examples/train_and_watch.py --steps 20 --prompts 4",
        "fewer steps; tests/test_watched_trainings.py takes all",
    ),
    "examples/finetune_smollm2.py": (
        "examples/finetune_smollm2.py --steps 1 --prompts 2",
        "fewer steps and prompts",
    ),
    "--text enwik8 --preset small --seeds 0 1 2 3 4 --controls shuffled fast": (
        "--text docs/ledger.md --preset tiny --steps 60 --seeds 0",
        "one small model for some that need a GPU",
    ),
    "--text docs/ledger.md --preset tiny": ("--text docs/ledger.md --preset tiny --steps 60", "fewer steps"),
    "profile smollm2 --known": ("profile smollm2 --known --pairs 8 --prompts 2", "fewer and shorter prompts"),
    "profile smollm2 --task repeats --rope": (
        "profile smollm2 --task repeats --prompts 2 --null none --rope",
        "fewer prompts, and no null",
    ),
    "profile smollm2 --task repeats --known": (
        "profile smollm2 --task repeats --known --prompts 2",
        "fewer prompts",
    ),
    "--controls 10": ("--controls 1 --prompts 2", "fewer prompts and random heads"),
    "depths number --prompts 24": ("depths number --prompts 2", "fewer prompts"),
    "depths smollm2 --pairs 8 --prompts 2 --swaps 28": (
        "depths path/to/model --pairs 8 --prompts 2 --swaps 4",
        "a tiny llama for minutes of work",
    ),
    "--at 0 10 15 own": ("--at 0 1 own", "a model of few layers"),
    "gate smollm2 --prompts 8": (
        "gate path/to/model --prompts 2 --bands 2",
        "a tiny llama for minutes of work",
    ),
    "--prefix fact --prompts 16": ("--prefix fact --prompts 2", "fewer prompts"),
    "--runs 2 --questions 20": ("--runs 2 --questions 1", "fewer questions"),
    "lengths letter": ("lengths letter --lengths 17 50", "fewer lengths"),
    "make test": ("env PYTEST_ADDOPTS=tests/test_docs.py make test", "the tests of the pages for all"),
    "make test-others": (
        ".venv/bin/python -m pytest --collect-only -q tests/others",
        "their packages are installed once, by tests/others",
    ),
    "ssh -L 8765:127.0.0.1:8765 MACHINE rotoscope serve runs --port 8765": (
        "rotoscope serve runs --port 0",
        "this machine for another one, any port",
    ),
}
REPLACED = re.compile(rf"(?<!\S)(?:{'|'.join(map(re.escape, STAND_INS))})(?!\S)")
PLACEHOLDER = r"\b[A-Z]{2,}\b|path/to|://|\b\w+\.(?:txt|toml|json|gguf)\b|<\w+>|\.\.\."
REVIEWED = [
    "theory-exclusion", "theory-frequency-id", "p1-metric", "p1-depth-positional", "p1-canonical-mixed",
    "p2-tasks", "p2-number-purity", "p2-hop-order", "p2-index-geometry", "p2-discrepancy-symbolic",
    "p2-length-letter", "p2-table-3-number", "p2-cost-storage",
]  # fmt: skip
"""Claims whose rows `test_a_reviewer_gets_the_number_of_a_row` computes again."""
SWEEP = """command = "profile"
out = "sweeps/first"
[grid]
model = ["letter", "number"]
seed = [0, 1]
[settings]
prompts = 2
null = "none"
"""
TEXT = "The cat sat on the mat. The dog ran home. The bird flew off. Who ran home? The"

pytestmark = pytest.mark.xdist_group("commands")  # one worker: a command reads what those before it wrote


def shown(text: str) -> list[str]:
    """Every command in a page: lines of shell blocks, indented lines, and commands with arguments in running text."""
    text = re.sub(r"\s*\\\n\s*", " ", text)
    blocks = re.findall(r"^ *```(\S*)\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    found = []
    for language, block in blocks:
        if language in OTHER or language.startswith("{"):
            continue
        start = r"(?!#)(?:\$ )?" if language in SHELLS else rf"\$ |(?={PROGRAM})"
        found += re.findall(rf"^[ \t]*(?:{start})(\S.*)$", block, flags=re.MULTILINE)
    found += re.findall(rf"^(?: {{4,}}|\t)(?:\$ |(?={PROGRAM}))(\S.*)$", prose, flags=re.MULTILINE)
    found += re.findall(rf"`(?!rotoscope [a-z]+`)({PROGRAM}[^`]*)`", " ".join(prose.split()))
    return [re.sub(r"\s+#.*$", "", command).strip() for command in found]


def commands() -> list[str]:
    """The commands of all pages in order, each once."""
    return list(dict.fromkeys(c for page in PAGES for c in shown(page.read_text(encoding="utf-8"))))


def stand_in(command: str) -> tuple[str, list[str]]:
    """What is run for a command, and why it is not the command itself."""
    reasons = [STAND_INS[text][1] for text in REPLACED.findall(command)]
    return REPLACED.sub(lambda text: STAND_INS[text.group()][0], command), list(dict.fromkeys(reasons))


def name(command: str) -> str:
    """The command, marked where something stands in."""
    reasons = stand_in(command)[1]
    return command + (f" (stand-in: {', '.join(reasons)})" if reasons else "")


def test_there_are_commands_to_run() -> None:
    assert {"make demo", "make test", "rotoscope doctor", "rotoscope lengths letter"} <= set(commands())
    assert len(commands()) >= 30


def test_commands_are_found_in_every_style() -> None:
    page = """
```console
$ rotoscope one   # said why
what it prints
```
```bash
rotoscope two \\
  --more
# a comment
VARIABLE=1 anything three
```
    rotoscope four
    what it prints
- a list
  ```sh
  $ make five
  ```
```
python -m six
```
```python
make = 7
```
Run `rotoscope
eight --now`, `make nine`, not `rotoscope` or `rotoscope nothing`.
"""
    assert shown(page) == [
        "rotoscope one", "rotoscope two --more", "VARIABLE=1 anything three", "make five", "python -m six",
        "rotoscope four", "rotoscope eight --now", "make nine",
    ]  # fmt: skip


def test_every_run_that_is_read_is_made() -> None:
    """A run is named with --out, by a command shown or by the Makefile, or has a stand-in."""
    made = re.findall(r"--out (\S+)", "\n".join([*commands(), (ROOT / "Makefile").read_text(encoding="utf-8")]))
    for command in commands():
        assert set(re.findall(r"runs/\S+", stand_in(command)[0])) <= {*made, "runs/number-mini-0"}, command


@pytest.mark.parametrize("command", commands(), ids=name)
def test_command_can_be_run(command: str) -> None:
    """Options exist, and whatever a reader has to fill in has a stand-in."""
    assert not re.search(PLACEHOLDER, REPLACED.sub("", command)), "a placeholder without a stand-in"
    words = shlex.split(stand_in(command)[0])
    if words[0] == "rotoscope":
        app().parse_args(words[1:], exit_on_error=False, print_error=False)


def test_every_stand_in_is_used() -> None:
    assert {text for command in commands() for text in REPLACED.findall(command)} == set(STAND_INS)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, smollm2: rs.Subject) -> Path:
    """A fresh clone that borrows this environment, so that only the project itself is new, with a user's own files."""
    place = tmp_path_factory.mktemp("clone") / "rotoscope"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place)], check=True)
    (place / ".venv").mkdir()
    for entry in Path(sys.executable).parents[1].iterdir():
        if entry.name != ".ready":
            (place / ".venv" / entry.name).symlink_to(entry)
    (place / ".venv" / ".ready").touch()
    model = tiny("llama", vocab_size=len(smollm2.tokenizer), max_position_embeddings=4096)
    model.save_pretrained(place / "path" / "to" / "model")
    smollm2.tokenizer.save_pretrained(place / "path" / "to" / "model")
    (place / "sweep.toml").write_text(SWEEP, encoding="utf-8")
    (place / "prompt.txt").write_text(TEXT, encoding="utf-8")
    page = (ROOT / "docs" / "measures.md").read_text(encoding="utf-8")
    (place / "my_measures.py").write_text(page.partition("```python\n")[2].partition("\n\n\nsubject")[0])
    return place


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    """An endpoint; every command shown is a dry run, so nobody may ask it anything."""
    with scripted(lambda *_: refused(500)) as running:
        yield running
        assert not running.asked


def start(words: list[str], clone: Path) -> subprocess.Popen[str]:
    """A command in the clone, with the project as it is there."""
    if words[0] in ("rotoscope", "python"):
        words = [f".venv/bin/{words[0]}", *words[1:]]
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    return subprocess.Popen(
        words, cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_python_of_the_readme(clone: Path) -> None:
    """The README's Python as it stands; the first block prints what is shown under it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, *others = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    [printed] = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    code = "\n".join([first, "print('the rest')", *others])
    started = start(["python", "-c", code], clone)
    output, problem = started.communicate(timeout=900)
    assert started.returncode == 0, problem[-2000:]
    assert output.partition("the rest\n")[0] == printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [command for command in commands() if "runs/story" not in command], ids=name
)
def test_command(command: str, clone: Path, server: Scripted) -> None:
    if command.startswith("pip install"):
        pytest.skip("installs from the package index, which made this environment")
    words = shlex.split(stand_in(command)[0].replace("{server}", server.url))
    started = start(words, clone)
    try:
        if words[:2] == ["rotoscope", "serve"]:
            look_and_stop(started)
        output, problem = started.communicate(timeout=900)
    finally:
        started.kill()
    assert started.returncode == 0, output[-2000:] + problem[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("claim", REVIEWED)
def test_a_reviewer_gets_the_number_of_a_row(claim: str, clone: Path) -> None:
    """Pick a row of the ledger as documented, compute it again, get its number and verdict."""
    page = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| {claim} |"))
    started = start(["rotoscope", "reproduce", claim, "--cost", "quick"], clone)
    output, problem = started.communicate(timeout=900)
    assert started.returncode == 0, output[-2000:] + problem[-2000:]
    rows = rs.open(clone / "runs" / f"ledger-{claim}-quick").rows.set_index("id", drop=False)
    cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    assert len(cells) >= 3
    assert set(cells) <= set(claim_cells(rows.loc[claim], COLUMNS))


def look_and_stop(started: subprocess.Popen[str]) -> None:
    """Open the address that a server prints, with its token and without, and stop it with Ctrl-C."""
    assert started.stdout is not None
    address = next(found.group() for line in started.stdout if (found := re.search(r"http://\S+", line)))
    with urllib.request.urlopen(address, timeout=30) as answer:
        assert "demo" in answer.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(address.split("?")[0], timeout=30)
    started.send_signal(signal.SIGINT)
