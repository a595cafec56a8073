"""What a model is shown: tokens, blocks, query positions, answers."""

from rotoscope.tasks.binding_prompts import binding as binding
from rotoscope.tasks.canonical_tasks import CanonicalSamples as CanonicalSamples
from rotoscope.tasks.canonical_tasks import canonical as canonical
from rotoscope.tasks.canonical_tasks import index as index
from rotoscope.tasks.canonical_tasks import induction as induction
from rotoscope.tasks.canonical_tasks import retrieval as retrieval
from rotoscope.tasks.either_way import either as either
from rotoscope.tasks.entity_groups import groups as groups
from rotoscope.tasks.lookup_lines import lookup as lookup
from rotoscope.tasks.multihop import MultiHop as MultiHop
from rotoscope.tasks.multihop import MultiHops as MultiHops
from rotoscope.tasks.multihop import letter as letter
from rotoscope.tasks.multihop import number as number
from rotoscope.tasks.onehop import OneHopPlan as OneHopPlan
from rotoscope.tasks.onehop import one_hop as one_hop
from rotoscope.tasks.onehop_prompts import questions as questions
from rotoscope.tasks.own_text import text as text
from rotoscope.tasks.prefixes import PREFIXES as PREFIXES
from rotoscope.tasks.prompts import Prompt as Prompt
from rotoscope.tasks.prompts import Prompts as Prompts
from rotoscope.tasks.prose_passages import passages as passages
from rotoscope.tasks.recalled_words import recall as recall
from rotoscope.tasks.repeated_tokens import repeats as repeats
from rotoscope.tasks.text_stretches import long_text as long_text
from rotoscope.tasks.tokens import from_tokens as from_tokens
