"""What a model is shown: tokens, blocks, query positions, answers."""

from rotoscope.tasks.binding_prompts import PREFIXES, binding
from rotoscope.tasks.canonical_tasks import CanonicalSamples, canonical, index, induction, retrieval
from rotoscope.tasks.multihop import MultiHop, MultiHops, letter, number
from rotoscope.tasks.onehop import OneHopPlan, one_hop
from rotoscope.tasks.own_text import text
from rotoscope.tasks.prompts import Prompt, Prompts
from rotoscope.tasks.prose_passages import passages
from rotoscope.tasks.repeated_tokens import repeats
from rotoscope.tasks.tokens import from_tokens

__all__ = [
    "PREFIXES",
    "CanonicalSamples",
    "MultiHop",
    "MultiHops",
    "OneHopPlan",
    "Prompt",
    "Prompts",
    "binding",
    "canonical",
    "from_tokens",
    "index",
    "induction",
    "letter",
    "number",
    "one_hop",
    "passages",
    "repeats",
    "retrieval",
    "text",
]
