"""Run by kvpress's own environment: the loss of a model whose prompt was compressed by its DuoAttentionPress.

    python kvpress_losses.py MODEL_FOLDER PATTERN_FOLDER PROMPTS.json

Our files are read by kvpress's own reader of DuoAttention's patterns: only the place they come from is another. Prints the mean
loss per prompt, with kvpress's choice of heads from the pattern and with our mask handed over.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from kvpress import DuoAttentionPress
from kvpress.presses import duo_attention_press
from transformers import AutoModelForCausalLM, DynamicCache

model_folder, pattern, shown = sys.argv[1], Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
model = AutoModelForCausalLM.from_pretrained(
    model_folder, dtype=torch.float32, attn_implementation="sdpa"
).eval()
duo_attention_press.PATTERNS_DICT[model.config.name_or_path] = "ours"
duo_attention_press.requests = SimpleNamespace(get=lambda url: _read(pattern / url.rpartition("/")[2]))


def _read(file):
    text = file.read_text()
    return SimpleNamespace(text=text, json=lambda: json.loads(text))


class Masked(DuoAttentionPress):
    """The press with a mask that is there already."""

    def post_init_from_model(self, model):
        self.streaming_mask, self.sink_size, self.recent_size = mask, shown["sinks"], shown["window"]


def losses(press):
    found = []
    for prompt in shown["prompts"]:
        tokens, cache = torch.tensor([prompt["tokens"]]), DynamicCache()
        with torch.no_grad():
            with press(model):
                model(tokens[:, : shown["context"]], past_key_values=cache)
            logits = model(tokens[:, shown["context"] :], past_key_values=cache).logits[0]
        asked = [query - shown["context"] for query in prompt["queries"]]
        found.append(torch.nn.functional.cross_entropy(logits[asked], torch.tensor(prompt["answers"])).item())
    return found


mask = torch.tensor(shown["mask"])
from_files = DuoAttentionPress(head_compression_ratio=float(mask.float().mean()))
found = {"files": losses(from_files), "mask": losses(Masked(head_compression_ratio=float(mask.float().mean())))}
print(json.dumps(found | {"same_heads": bool((from_files.streaming_mask == mask).all())}))
