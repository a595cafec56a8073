"""Which names are paths and which are the hub's; what is asked of the hub; what is said when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

import rotoscope as rs
from rotoscope.errors import ModelError, RunError
from rotoscope.models import offloading as scratch
from tests.disk import full_disk
from tests.hub import Hub, serving
from tests.models.test_load import word_tokenizer
from tests.tiny_gguf import write_gguf
from tests.tiny_models import tiny


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place to work in, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture
def hub(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub of our own that knows nothing yet and notes what it is asked for."""
    with serving(here / "hub", monkeypatch) as running:
        yield running


@pytest.fixture
def asked(hub: Hub) -> list[str]:
    return hub.asked


def test_a_hub_id_is_asked_for(here: Path, asked: list[str]) -> None:
    with pytest.raises(ModelError, match="'models/typo' could not be loaded from the hub") as said:
        rs.load("models/typo")
    assert any("models/typo" in path for path in asked)
    assert "\n" not in str(said.value)


def test_a_mistyped_path_is_not_asked_for(here: Path, asked: list[str]) -> None:
    (here / "models" / "types").mkdir(parents=True)
    with pytest.raises(ModelError, match=r"no such folder: models/typo; did you mean models/types\?"):
        rs.load("models/typo")
    with pytest.raises(ModelError, match=r"no such folder: models/other; .*on the hub is hf:models/other"):
        rs.load("models/other")
    for path in ("./models/typo", "../typo/x", "~nobody-of-this-name/typo", "/models/typo", "a/b/c", "models/"):
        with pytest.raises(ModelError, match="no such folder|no config"):
            rs.load(path)
    assert asked == []
    with pytest.raises(ModelError, match="'models/typo' could not be loaded from the hub"):
        rs.load("hf:models/typo")
    assert any("models/typo" in path for path in asked)


@pytest.mark.parametrize("name", ["hf:", "hf:a/b/c", "hf:../x", "hf:/x", "hf:a b"])
def test_what_can_be_no_hub_id(name: str, here: Path, asked: list[str]) -> None:
    with pytest.raises(ModelError, match="is no name of a model on the hub"):
        rs.load(name)
    assert asked == []


@pytest.mark.parametrize("name", ["hf:org/name", "org/name", "hf:name"])
def test_offline_nothing_is_tried(
    name: str, here: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="not fetched from the hub before, and HF_HUB_OFFLINE says not to ask"):
        rs.load(name)
    assert asked == []


def test_offline_a_model_that_was_fetched_before_is_found(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the form the hub's own library keeps it, and with nothing of its code run."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    kept, commit = here / "hub" / "models--org--name", "0" * 40
    place = kept / "snapshots" / commit
    tiny("llama").save_pretrained(place)
    word_tokenizer().save_pretrained(place)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(commit)
    subject = rs.load("hf:org/name", device="cpu")
    assert (subject.name, subject.source) == ("org/name", {"kind": "hub", "place": "org/name"})
    assert subject.fingerprint == rs.load(place, device="cpu").fingerprint


def test_a_revision_of_a_model_on_the_hub(here: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch is another model, and is called so; written either way, it is fetched once."""
    for branch, seed in (("main", 0), ("step10", 1)):
        tiny("llama", seed=seed, num_hidden_layers=1).save_pretrained(here / branch)
        word_tokenizer().save_pretrained(here / branch)
    hub.models["org/name"] = {branch: here / branch for branch in ("main", "step10")}
    subject = rs.load("org/name", revision="step10", device="cpu")
    assert (subject.name, subject.source) == ("org/name@step10", {"kind": "hub", "place": "org/name@step10"})
    assert subject.fingerprint == rs.load(here / "step10", device="cpu").fingerprint
    fetched = len(hub.downloads)
    assert rs.load("hf:org/name@step10", device="cpu").fingerprint == subject.fingerprint
    assert len(hub.downloads) == fetched > 0
    assert rs.load("org/name", device="cpu").fingerprint != subject.fingerprint
    with pytest.raises(ModelError, match="'org/name@step99' could not be loaded from the hub"):
        rs.load("org/name", revision="step99")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert rs.load("org/name@step10", device="cpu").fingerprint == subject.fingerprint
    with pytest.raises(ModelError, match="'org/name@step99' was not fetched from the hub before"):
        rs.load("org/name", revision="step99")
    assert hub.asked == []


@pytest.mark.parametrize("source", ["main", "smollm2", "org/name@step1", Path("org/name")])
def test_a_revision_of_what_is_not_on_the_hub(source: object, here: Path, asked: list[str]) -> None:
    with pytest.raises(
        ModelError, match="revision 'step10' means something for the name of a model on the hub only"
    ):
        rs.load(source, revision="step10")
    assert asked == []


@pytest.mark.parametrize("name", ["x" * 300, "models/" + "x" * 300, "a\0b", "a/b\0c", "\udcff", ""])
def test_odd_names_are_refused_in_a_sentence(name: str, here: Path, asked: list[str]) -> None:
    with pytest.raises(ModelError):
        rs.load(name)


def test_errors_of_transformers_are_one_sentence_and_the_rest_is_in_a_log(here: Path) -> None:
    """A configuration that transformers refuses over several lines."""
    tiny("llama").save_pretrained(here / "model")
    word_tokenizer().save_pretrained(here / "model")
    text = (here / "model" / "config.json").read_text()
    (here / "model" / "config.json").write_text(text.replace('"vocab_size": 128', '"vocab_size": "many"'))
    with pytest.raises(ModelError, match="the model in model cannot be loaded") as said:
        rs.load("model")
    assert "\n" not in str(said.value)
    assert len(str(said.value)) < 600
    log = here / "cache" / "loading.log"
    assert str(log) in str(said.value)
    whole = log.read_text(encoding="utf-8")
    assert "Traceback" in whole
    assert "many" in whole


def test_an_error_is_said_also_where_no_log_can_be_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "taken").write_text("")
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(here / "taken"))
    tiny("llama").save_pretrained(here / "model")
    (here / "model" / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match=r"SafetensorError: [^;]*\); a file may be missing"):
        rs.load("model")


HOLD = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
spec = spec_from_file_location("scratch", sys.argv[1])
scratch = module_from_spec(spec)
spec.loader.exec_module(scratch)
with scratch.scratch_folder(Path(sys.argv[2])) as folder:
    print(folder.name, flush=True)
    sys.stdin.read()
"""
"""Works in a folder until it is told to end; the module alone is loaded, which is quicker."""


@pytest.mark.slow
def test_leftovers_of_killed_conversions_are_removed_and_those_at_work_are_not(here: Path) -> None:
    """The next conversion removes them; one that still goes on in another process is left alone."""
    place = here / "cache" / "gguf"
    start = [sys.executable, "-c", HOLD, scratch.__file__, str(place)]
    running = [subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    try:
        at_work, killed = (process.stdout.readline().strip() for process in running)  # type: ignore[union-attr]
        running[1].kill()
        running[1].wait()
        assert {at_work, killed} <= {one.name for one in place.iterdir()}
        rs.load(write_gguf(here / "a.gguf"), device="cpu")
        left = {one.name for one in place.iterdir() if one.name.startswith(scratch.SCRATCH)}
        assert left == {at_work}
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_a_conversion_without_room(here: Path) -> None:
    """A full disk is a sentence; nothing is left of it, and with room it goes on."""
    file = write_gguf(here / "a.gguf")
    with full_disk(50_000), pytest.raises(RunError, match="gguf cannot be written"):
        rs.load(file, device="cpu")
    assert not [one for one in (here / "cache" / "gguf").iterdir() if one.is_dir()]
    rs.load(file, device="cpu")
