"""GGUF files, damaged: refused in a sentence, or loaded with exactly the weights that were written."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from random import Random
from typing import Any

from tests.campaign.damage import damaged_bytes, remove
from tests.campaign.kinds import where
from tests.campaign.model_folders import weights_of
from tests.campaign.runner import Case, Part

HUGE = (0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def prepare(place: Path, stock: Path) -> Case:
    import rotoscope as rs
    from rotoscope.errors import RotoscopeError
    from tests.tiny_gguf import tensors, write_gguf

    file, cache = place / "tiny.gguf", place / "cache"
    os.environ["ROTOSCOPE_CACHE"] = str(cache)
    whole = write_gguf(file).read_bytes()
    numbers = len(whole) - sum(one.nbytes for one in tensors().values())
    expected = _read(rs.load(file, device="cpu"))

    def case(number: int, draw: Random) -> str | None:
        kind = draw.choice(("head", "head", "head", "cut", "count", "count", "word"))
        front, back = whole[:numbers], whole[numbers:]
        if kind == "cut":
            content = whole[: draw.randrange(len(whole))]
        elif kind == "count":  # counts and lengths stand in eight bytes
            at = draw.choice((8, 16, draw.randrange(4, 200)))
            content = front[:at] + struct.pack("<Q", draw.choice(HUGE)) + front[at + 8 :] + back
        elif kind == "word":
            words = [
                b"llama",
                b"token_embd",
                b"blk.",
                b"gpt2",
                b"block_count",
                b"embedding_length",
                b"head_count",
            ]
            old = draw.choice(words)
            content = (
                front.replace(old, draw.randbytes(len(old)) if draw.random() < 0.5 else b"x" * len(old)) + back
            )
            kind = f"another word for {old.decode()}"
        else:
            content = damaged_bytes(draw, front) + back
        remove(file)
        file.write_bytes(content)
        shutil.rmtree(cache, ignore_errors=True)
        try:
            found = _read(rs.load(file, device="cpu"))
            # Other settings are another model, with its weights in another order: nothing in the file tells.
            if found[0] == expected[0] and found != expected:
                return f"{kind}: silently changed weights"
        except (RotoscopeError, OSError) as problem:
            if "\n" in str(problem):
                return f"{kind}: not one sentence: {problem!s:.300}"
        except Exception as problem:
            return f"{kind}: traceback: {where(problem)}"
        return None

    return case


def _read(subject: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    return subject.model.config.to_dict(), weights_of(subject)


PART = Part("gguf", prepare, share=0.05, limit_s=60)
