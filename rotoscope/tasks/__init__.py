"""What a model is shown: tokens, blocks, query positions, answers."""

from rotoscope.tasks.binding import binding as binding
from rotoscope.tasks.canonical import CanonicalSamples as CanonicalSamples
from rotoscope.tasks.canonical import canonical as canonical
from rotoscope.tasks.canonical import index as index
from rotoscope.tasks.canonical import induction as induction
from rotoscope.tasks.canonical import retrieval as retrieval
from rotoscope.tasks.lists import groups as groups
from rotoscope.tasks.lists import lookup as lookup
from rotoscope.tasks.lists import recall as recall
from rotoscope.tasks.multihop import letter as letter
from rotoscope.tasks.multihop import number as number
from rotoscope.tasks.multihop_frames import MultiHop as MultiHop
from rotoscope.tasks.multihop_frames import MultiHops as MultiHops
from rotoscope.tasks.multihop_frames import either as either
from rotoscope.tasks.onehop import OneHopPlan as OneHopPlan
from rotoscope.tasks.onehop import one_hop as one_hop
from rotoscope.tasks.onehop import questions as questions
from rotoscope.tasks.prompt import PREFIXES as PREFIXES
from rotoscope.tasks.prompt import Prompt as Prompt
from rotoscope.tasks.prompt import Prompts as Prompts
from rotoscope.tasks.prompt import from_tokens as from_tokens
from rotoscope.tasks.repeats import repeats as repeats
from rotoscope.tasks.text import long_text as long_text
from rotoscope.tasks.text import passages as passages
from rotoscope.tasks.text import text as text
