"""Pure functions on tensors: no model, no file, no device choice inside."""

from rotoscope.scores.attention import attention_entropy as attention_entropy
from rotoscope.scores.attention import attention_weights as attention_weights
from rotoscope.scores.blocks import Blocks as Blocks
from rotoscope.scores.blocks import block_logits as block_logits
from rotoscope.scores.classes import CLASSES as CLASSES
from rotoscope.scores.classes import purity_class as purity_class
from rotoscope.scores.classes import purity_classes as purity_classes
from rotoscope.scores.classes import purity_codes as purity_codes
from rotoscope.scores.constructions import RotaryHead as RotaryHead
from rotoscope.scores.counterfactual import counterfactual_logits as counterfactual_logits
from rotoscope.scores.counterfactual import split_planes as split_planes
from rotoscope.scores.counterfactual import turn as turn
from rotoscope.scores.discrepancy import discrepancy as discrepancy
from rotoscope.scores.exclusion_principle import Exclusion as Exclusion
from rotoscope.scores.exclusion_principle import exclusion as exclusion
from rotoscope.scores.swaps import SwapDetail as SwapDetail
from rotoscope.scores.swaps import SwapScores as SwapScores
from rotoscope.scores.swaps import swap_scores as swap_scores
