"""Which names are paths and which are the hub's; what is asked of the hub; what is said when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import constants

import rotoscope as rs
from rotoscope.errors import ModelError, RunError
from rotoscope.reading import scratch
from tests.disk import full_disk
from tests.models import tiny
from tests.reading.test_load import word_tokenizer
from tests.tiny_gguf import write_gguf


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place to work in, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub of our own that knows nothing and notes what it is asked for."""
    noted: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def answer(self) -> None:
            noted.append(self.path)
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield noted
    server.shutdown()
    thread.join()
    server.server_close()


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
