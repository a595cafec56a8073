"""Model folders, damaged or hostile: refused in a sentence, or loaded with exactly the weights that were saved; no code runs."""

from __future__ import annotations

import io
import json
import shutil
import struct
import sys
from pathlib import Path
from random import Random
from typing import Any

from tests.campaign.damage import HOSTILE, ODD, damaged_bytes, damaged_json, remove, replace_by_another_kind
from tests.campaign.kinds import where
from tests.campaign.runner import Case, Part

CODE = ("mine.py", "modeling_mine.py", "custom_generate/generate.py", "tokenization_mine.py")
KEYS: dict[str, Any] = {
    "auto_map": {
        "AutoConfig": "mine.Config",
        "AutoModelForCausalLM": "mine.Model",
        "AutoTokenizer": ["mine.Words", None],
    },
    "_attn_implementation": "somebody/kernel",
    "attn_implementation": "somebody/kernel:function",
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "custom_generate": "mine.py",
    "trust_remote_code": True,
    "model_type": "mine",
    "architectures": ["Mine"],
    "tokenizer_class": "AutoImageProcessor",
    "processor_class": "Mine",
    "torch_dtype": "__import__('os').system('touch the-code-ran')",
    "dtype": "eval",
    "_name_or_path": "../../canary.txt",
    "adapter_config": {"base_model_name_or_path": "."},
    "use_kernels": True,
    "tie_word_embeddings": True,
    "num_hidden_layers": 3,
    "rope_parameters": {"rope_type": "mine"},
}


def prepare(place: Path, stock: Path) -> Case:
    return _Models(place, stock / "model")


class _Models:
    def __init__(self, place: Path, source: Path) -> None:
        import rotoscope as rs

        self.folder, self.source, self.mark = place / "model", source, place / "the-code-ran"
        remove(self.folder)
        shutil.copytree(source, self.folder)
        self.files = {file: file.read_bytes() for file in sorted(self.folder.iterdir())}
        whole = rs.load(self.folder, device="cpu")
        self.weights, self.heads = weights_of(whole), self._profiled(whole)
        sys.stdin = io.StringIO("y\n" * 10**5)

    @staticmethod
    def _profiled(subject: Any) -> str:
        """Scores of a few tokens."""
        import rotoscope as rs
        from tests.tiny_models import tokens

        return str(rs.profile(subject, tokens=tokens(1, 8), null="none", examples=False).heads.to_json())

    def __call__(self, number: int, draw: Random) -> str | None:
        told, faithful = self._damage(draw)
        try:
            wrong = self._judge(faithful=faithful, not_numbers=told.endswith((" nan", " inf")))
        finally:
            for file in [one for one in self.folder.iterdir() if one not in self.files]:
                remove(file)
            for file, content in self.files.items():
                if not _is_plain(file) or file.read_bytes() != content:
                    remove(file)
                    file.write_bytes(content)
        return None if wrong is None else f"{told}: {wrong}"

    def _damage(self, draw: Random) -> tuple[str, bool]:
        """Do something; says what, and whether weights that are loaded must still be those that were saved."""
        kind = draw.choice(("config", "config", "key", "header", "tensor", "bytes", "other", "index", "pickle"))
        weights = self.folder / "model.safetensors"
        named = [file for file in self.files if file.suffix == ".json"]
        file = draw.choice(named)
        if kind == "config":
            changed = damaged_json(draw, json.loads(self.files[file]))
            file.write_bytes(json.dumps(changed).encode("utf-8", "surrogatepass"))
            return f"{file.name} edited", False
        if kind == "key":
            return self._hostile_key(draw, file), False
        if kind == "header":
            return self._header(draw, weights)
        if kind == "tensor":
            return _with_numbers(draw, weights, self.files[weights]), False
        if kind == "other":
            chosen = draw.choice(sorted(self.files))
            return (
                f"{replace_by_another_kind(draw, chosen, sorted(self.files))} in place of {chosen.name}",
                True,
            )
        if kind == "index":
            return self._index(draw, weights), True
        if kind == "pickle":
            remove(weights)
            program = f"open({str(self.mark)!r}, 'w').close()".encode()
            name = draw.choice(
                ("pytorch_model.bin", "model.safetensors", "pytorch_model-00001-of-00001.bin", "model.pt")
            )
            (self.folder / name).write_bytes(b"cbuiltins\nexec\n(V" + program + b"\ntR.")
            return f"a pickle called {name}", True
        file.write_bytes(damaged_bytes(draw, self.files[file], [self.files[one] for one in named]))
        return f"{file.name} damaged", False

    def _hostile_key(self, draw: Random, file: Path) -> str:
        content = json.loads(self.files[file])
        keys = draw.sample(sorted(KEYS), draw.randrange(1, 4))
        file.write_text(json.dumps(content | {key: KEYS[key] for key in keys}))
        for name in CODE:
            place = self.folder / name
            place.parent.mkdir(exist_ok=True)
            place.write_text(
                f"open({str(self.mark)!r}, 'w').close()\nclass Config: pass\nclass Model: pass\nclass Words: pass\n"
            )
        return f"{file.name} with {', '.join(keys)}"

    def _header(self, draw: Random, weights: Path) -> tuple[str, bool]:
        """The description of the tensors edited, or its bytes damaged; the numbers are left alone."""
        content = self.files[weights]
        (length,) = struct.unpack("<Q", content[:8])
        header, numbers = content[8 : 8 + length], content[8 + length :]
        if draw.random() < 0.5:
            text = json.dumps(damaged_json(draw, json.loads(header))).encode("utf-8", "surrogatepass")
            weights.write_bytes(struct.pack("<Q", len(text)) + text + numbers)
            return "header edited", True
        changed = damaged_bytes(draw, content[: 8 + length])
        weights.write_bytes(changed + numbers)
        return "header damaged", True

    def _index(self, draw: Random, weights: Path) -> str:
        """Shards that are missing, of another name, or elsewhere."""
        name = draw.choice(
            (
                "model-00001-of-00002.safetensors",
                "../../canary.txt",
                "pytorch_model.bin",
                "/dev/zero",
                *HOSTILE[:8],
            )
        )
        entries = {key: name if draw.random() < 0.5 else "model.safetensors" for key in sorted(self.weights)}
        odd = {draw.choice(sorted(entries)): draw.choice(ODD)} if draw.random() < 0.3 else {}
        index = {"metadata": {"total_size": draw.choice((0, -1, 10**30, None))}, "weight_map": entries | odd}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))
        if draw.random() < 0.5:
            remove(weights)
        return f"an index that names {name!a}"

    def _judge(self, *, faithful: bool, not_numbers: bool) -> str | None:
        import rotoscope as rs
        from rotoscope.errors import RotoscopeError

        try:
            found = rs.load(self.folder, device="cpu")
            if faithful and weights_of(found) != self.weights:
                return "silently changed weights"
            if not_numbers and (told := self._profiled(found)) != self.heads:
                return f"profiled with NaN in the weights: {told[:100]}"
        except (RotoscopeError, OSError) as problem:
            if "\n" in str(problem):
                return f"not one sentence: {problem!s:.300}"
        except Exception as problem:
            return f"traceback: {where(problem)}"
        if self.mark.exists():
            self.mark.unlink()
            return "code of the model folder ran"
        return None


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()


def weights_of(subject: Any) -> dict[str, bytes]:
    """Every tensor of a model, to the last bit."""
    return {name: value.detach().numpy().tobytes() for name, value in subject.model.state_dict().items()}


def _with_numbers(draw: Random, weights: Path, content: bytes) -> str:
    """A tensor with NaN or infinity in it, of another shape or type, one too many or missing."""
    import torch
    from safetensors.torch import load, save_file

    tensors = load(content)
    name = draw.choice(sorted(tensors))
    kind = draw.choice(("nan", "inf", "shape", "type", "missing", "more", "renamed"))
    if kind in ("nan", "inf"):
        tensors[name].view(-1)[draw.randrange(tensors[name].numel())] = float(kind)
    elif kind == "shape":
        tensors[name] = tensors[name].reshape(-1)[:-1].clone()
    elif kind == "type":
        tensors[name] = tensors[name].to(draw.choice((torch.int8, torch.float16, torch.bool, torch.float64)))
    elif kind == "missing":
        del tensors[name]
    elif kind == "more":
        tensors["one.more.weight"] = torch.zeros(3)
    else:
        tensors[f"x.{name}"] = tensors.pop(name)
    save_file(tensors, weights, metadata={"format": "pt"})
    return f"{name} {kind}"


PART = Part("model_folders", prepare, share=0.09, limit_s=30)
