"""The commands with few flags: `theory`, `report`, `reproduce`, `serve`, `bundle`, `doctor`."""

from __future__ import annotations

import pytest

import rotoscope.figures
from rotoscope.tasks import letter, number
from tests.cli.flags.effect import (
    Effect,
    Other,
    Outcome,
    Overwrites,
    Refused,
    Table,
    World,
    Written,
    once,
)  # fmt: skip
from tests.cli.flags.profile import REPEATS

CHECKED = "theory appendix-b"


def texts_of(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@once
def what_is_drawn_is_what_was_asked_for(world: World) -> None:
    """Looks at the figures before they are turned into files."""
    drawn: list[dict[str, list[str]]] = []

    def kept(figure, path):
        drawn[-1][path.name] = texts_of(figure)
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rotoscope.figures, "save", kept)
        for more in ("--number 'a b c 1 2' --seed 5", "--letter 'a1 b2 ca dc' --seed 6"):
            drawn.append({})
            found = world.run(f"{CHECKED} --figures {more}")
            assert found.code == 0, found.problem
    with_number, with_letter = (set(one["hop_path"]) for one in drawn)
    assert {"a", "b", "c", "1", "2", *letter(1, hops=(3,), seed=5)[0].tokens} <= with_number
    assert {"a1", "b2", "ca", "dc", *number(1, hops=(3,), seed=6)[0].tokens} <= with_letter


def nothing_is_drawn_unasked(world: World) -> None:
    assert world.run(CHECKED).files == ["manifest.txt", "run.json", "statements.parquet"]


def another_statement_replaces_the_first(world: World) -> None:
    place = world.place / "theory"
    assert world.run(f"{CHECKED} --out {place}").code == 0
    kept = world.run(f"theory separation --out {place}")
    assert kept.code == 2
    assert "--overwrite" in kept.problem
    replaced = world.run(f"theory separation --out {place} --overwrite")
    assert replaced.result.statements["name"].tolist() == ["separation"]


THEORY: Table = {
    "name": Other(CHECKED, "theory separation", lambda o: o.result.statements["name"].tolist(), ["separation"]),
    "figures": (nothing_is_drawn_unasked, what_is_drawn_is_what_was_asked_for),
    "number": (what_is_drawn_is_what_was_asked_for, Refused(CHECKED, "--number 'a 1'", "give --figures too")),
    "letter": (what_is_drawn_is_what_was_asked_for, Refused(CHECKED, "--letter 'a1 ba'", "give --figures too")),
    "seed": (what_is_drawn_is_what_was_asked_for, Refused(CHECKED, "--seed 1", "give --figures too")),
    "out": Written(CHECKED),
    "overwrite": another_statement_replaces_the_first,
    "device": Refused(CHECKED, "--device cuda", "means nothing for theory"),
}


@once
def one_page_about(world: World) -> None:
    """One run, two runs, a file of one's own, and one that is not replaced unasked."""
    first, second = world.run(REPEATS).folder, world.run(f"{REPEATS} --seed 1").folder
    page, other = world.place / "page.html", world.place / "both.html"
    assert world.run(f"report {first} --out {page}").code == 0
    assert page.is_file()
    assert not (first / "report.html").exists()
    again = world.run(f"report {first} {second} --out {page}")
    assert again.code == 2
    assert "--overwrite" in again.problem
    assert world.run(f"report {first} {second} --out {other}").code == 0
    one, both = page.read_text(), other.read_text()
    assert one != both
    assert world.run(f"report {first} {second} --out {page} --overwrite").code == 0
    assert page.read_text() == both
    assert world.run(f"report {second} --out {world.place / 'second.html'}").code == 0
    assert (world.place / "second.html").read_text() != one


REPORT: Table = {
    "run": one_page_about,
    "other": one_page_about,
    "out": one_page_about,
    "overwrite": one_page_about,
}

CLAIM = "reproduce p2-number-order"
TABLE_3 = "reproduce p2-table-3-letter"


def verdicts(outcome: Outcome) -> dict[str, str]:
    rows = outcome.result.rows
    return dict(zip(rows["id"], rows["verdict"], strict=True))


@once
def the_model_that_is_named_is_judged(world: World) -> None:
    for more, sentence in (
        ("--model nowhere", "no model called 'nowhere'"),
        ("--model {model} --device nowhere", "device 'nowhere' cannot be used"),
    ):
        found = world.run(f"reproduce p1-anticorrelation {more}")
        assert found.code == 2, found.told
        assert sentence in found.problem


REPRODUCE: Table = {
    "which": Other(CLAIM, "reproduce p2-letter-depth", lambda o: list(verdicts(o)), ["p2-letter-depth"]),
    "cost": (
        Effect(CLAIM, "--cost cpu", lambda o: o.result.rows["command"].tolist()),
        "tests/papers/test_ledger.py::test_at_gpu_cost_the_models_are_trained_again",
    ),
    "model": (
        the_model_that_is_named_is_judged,
        "tests/papers/test_ledger.py::test_the_papers_own_models_can_be_given",
    ),
    "one_hop": Effect(TABLE_3, "--one-hop {answers}", verdicts, {"p2-table-3-letter": "reproduced"}),
    "seed": Refused(CLAIM, "--seed 1", "judged on fixed seeds"),
    "out": Written(CLAIM),
    "overwrite": Overwrites(CLAIM, "--cost cpu"),
    "device": the_model_that_is_named_is_judged,
}

SERVED = "tests/report/test_real_server.py"
SERVE: Table = {
    "folder": f"{SERVED}::test_a_real_server",
    "port": f"{SERVED}::test_what_cannot_be_served",
    "host": f"{SERVED}::test_other_machines_only_with_a_warning",
    "open": f"{SERVED}::test_the_browser_is_opened_when_asked",
}


@once
def one_folder_about(world: World) -> None:
    """One run, two runs, a folder of one's own, and one that is not replaced unasked."""
    first, second = world.run(REPEATS).folder, world.run(f"{REPEATS} --seed 1").folder
    site = world.place / "site"
    assert world.run(f"bundle {first} --out {site}").code == 0
    assert len(list(site.glob("run-*.html"))) == 1
    again = world.run(f"bundle {first} {second} --out {site}")
    assert (again.code, again.problem.count("\n")) == (2, 1)
    assert "--overwrite" in again.problem
    assert len(list(site.glob("run-*.html"))) == 1
    assert world.run(f"bundle {first} {second} --out {site} --overwrite").code == 0
    assert len(list(site.glob("run-*.html"))) == 2


BUNDLE: Table = dict.fromkeys(("runs", "out", "overwrite"), one_folder_about)

DOCTOR: Table = dict.fromkeys(("out", "seed", "device"), "tests/cli/test_cli.py::test_doctor") | dict.fromkeys(
    ("run", "overwrite"), "tests/cli/test_cli.py::test_doctor_of_a_run"
)
