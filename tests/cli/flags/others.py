"""The commands with few flags: `theory`, `report`, `reproduce`, `serve`, `doctor`."""

from __future__ import annotations

from tests.cli.flags.effect import (
    Effect,
    Other,
    Outcome,
    Overwrites,
    Table,
    World,
    Written,
    once,
)  # fmt: skip
from tests.cli.flags.profile import REPEATS

CHECKED = "theory appendix-b"


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
    "figures": (nothing_is_drawn_unasked, "tests/cli/test_cli.py::test_theory"),
    "out": Written(CHECKED),
    "overwrite": another_statement_replaces_the_first,
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


@once
def one_folder_about(world: World) -> None:
    """One run, two runs, a folder of one's own, and one that is not replaced unasked."""
    first, second = world.run(REPEATS).folder, world.run(f"{REPEATS} --seed 1").folder
    site = world.place / "site"
    assert world.run(f"report {first} --site {site}").code == 0
    assert len(list(site.glob("run-*.html"))) == 1
    again = world.run(f"report {first} {second} --site {site}")
    assert (again.code, again.problem.count("\n")) == (2, 1)
    assert "--overwrite" in again.problem
    assert len(list(site.glob("run-*.html"))) == 1
    assert world.run(f"report {first} {second} --site {site} --overwrite").code == 0
    assert len(list(site.glob("run-*.html"))) == 2


REPORT: Table = {
    "runs": one_page_about,
    "site": one_folder_about,
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


DOCTOR: Table = {
    "device": "tests/cli/test_cli.py::test_doctor",
    "run": "tests/cli/test_cli.py::test_doctor_of_a_run",
}
