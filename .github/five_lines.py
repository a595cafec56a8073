"""A profile of a tiny random model: what an installation must be able to do without any download."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import rotoscope as rs

config = LlamaConfig(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=128
)
model = AutoModelForCausalLM.from_config(config).eval()
profile = rs.profile(model, tokens=torch.randint(3, 128, (2, 16)))
assert len(profile.heads) == 8, profile.heads
print(profile.heads[["layer", "head", "positional_score", "symbolic_score", "head_class"]])
