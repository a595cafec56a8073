"""Pure functions on tensors: no model, no file, no device choice inside."""

from rotoscope.maths.attention import attention_entropy, attention_weights
from rotoscope.maths.blocks import Blocks, block_logits
from rotoscope.maths.exclusion_principle import Exclusion, exclusion
from rotoscope.maths.head import RotaryHead
from rotoscope.maths.head_discrepancy import discrepancy
from rotoscope.maths.purity import CLASSES, purity_class, purity_classes, purity_codes
from rotoscope.maths.rotation import counterfactual_logits, turn
from rotoscope.maths.swaps import SwapDetail, SwapScores, swap_scores

__all__ = [
    "CLASSES",
    "Blocks",
    "Exclusion",
    "RotaryHead",
    "SwapDetail",
    "SwapScores",
    "attention_entropy",
    "attention_weights",
    "block_logits",
    "counterfactual_logits",
    "discrepancy",
    "exclusion",
    "purity_class",
    "purity_classes",
    "purity_codes",
    "swap_scores",
    "turn",
]
