"""One declaration is enough: a toy experiment of another package is found everywhere an experiment can be met."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import rotoscope as rs
from rotoscope.cli import main
from rotoscope.experiments import registry
from rotoscope.report import run_payload
from rotoscope.report.run_index import find_runs
from tests import toy_experiment
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

ENTRY = EntryPoint("loud", "tests.toy_experiment:EXPERIMENT", registry.GROUP)
BROKEN = EntryPoint("broken", "tests.no_such_module:EXPERIMENT", registry.GROUP)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if two packages were installed, of which one cannot be imported."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [ENTRY, BROKEN])
    registry.load_again()
    yield
    monkeypatch.undo()
    registry.load_again()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("toy") / "model"
    tiny("llama").save_pretrained(place)
    word_tokenizer().save_pretrained(place)
    return place


def ended(capsys: pytest.CaptureFixture, *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_code:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return int(exit_code.value.code or 0), captured.out, captured.err


def test_the_toy_is_found_everywhere(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, listing, _ = ended(capsys, "--help")
    assert "loud" in listing
    _, page, _ = ended(capsys, "loud", "--help")
    assert "How loud is a layer?" in page
    assert "--repeat" in page
    assert "How often to look." in page

    out = tmp_path / "runs" / "loud"
    config = tmp_path / "settings.toml"
    config.write_text("[loud]\nlength = 6\nrepeat = 2\nseed = 3\n")
    monkeypatch.setenv("ROTOSCOPE_LOUD_REPEAT", "5")
    code, shown, problem = ended(
        capsys, "loud", model, "--config", config, "--length", 5, "--figures", "--out", out
    )
    assert code == 0, problem
    assert "The loudest layer is 1." in shown
    assert (out / "loudness.png").is_file()

    run = rs.open(out)
    assert isinstance(run, toy_experiment.Loudness)
    assert (run.run.settings["repeat"], run.run.settings["seed"]) == (5, 3)
    assert [name for name, _ in rs.figures.figures_of(run)] == ["loudness"]
    payload = run_payload(out)
    assert payload["title"].startswith("Loudness of")
    assert payload["tabs"]["loud"]["sentences"] == ["The loudest layer is 1."]
    assert payload["tabs"]["tables"]["tables"][0]["title"] == "Loudness by layer"
    [entry] = find_runs(tmp_path / "runs")[0]
    assert (entry.kind, entry.state) == ("loudness", "finished")

    monkeypatch.delenv("ROTOSCOPE_LOUD_REPEAT")
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        f"command = 'loud'\nout = '{tmp_path / 'sweep'}'\n[grid]\nrepeat = [1, 2]\n[settings]\nmodel = '{model}'\n"
    )
    items = rs.sweep(sweep, dry_run=True).items
    assert items["repeat"].tolist() == [1, 2]


def test_an_experiment_that_cannot_be_imported_is_named_and_the_rest_works(
    capsys: pytest.CaptureFixture,
) -> None:
    code, page, problem = ended(capsys, "--help")
    assert code == 0
    assert "profile" in page
    assert problem.count("\n") == 1
    assert re.search("experiment 'broken' .* is left out: No module named 'tests.no_such_module'", problem)


def written_reference() -> str:
    """The command reference of the documentation, as its script writes it now."""
    place = Path(__file__).parents[2] / "docs" / "commands_page.py"
    names: dict = {"__name__": "commands_page", "__file__": str(place)}
    exec(compile(place.read_text(encoding="utf-8"), str(place), "exec"), names)
    return str(names["reference"]())


def test_the_toy_is_in_the_command_reference() -> None:
    reference = written_reference()
    assert "## loud\n\nHow loud is a layer?" in reference
    assert "rotoscope loud smollm2 --repeat 2" in reference
    assert "`--repeat`" in reference


def test_the_command_reference_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    registry.load_again()
    page = Path(__file__).parents[2] / "docs" / "commands.md"
    assert page.read_text(encoding="utf-8") == written_reference()  # python docs/commands_page.py


def test_every_path_of_a_declaration_exists() -> None:
    for name in registry.result_kinds():
        kind = registry.kind_declaration(name)
        assert kind is not None
        assert registry.resolve(kind.result).kind == name
        for path in (kind.figures, kind.so_far, kind.comparison, *kind.tabs.values()):
            assert not path or callable(registry.resolve(path))
