"""Pure functions on tensors: no model, no file, no device choice inside."""

from rotoscope.maths.attention import attention_entropy as attention_entropy
from rotoscope.maths.attention import attention_weights as attention_weights
from rotoscope.maths.blocks import Blocks as Blocks
from rotoscope.maths.blocks import block_logits as block_logits
from rotoscope.maths.exclusion_principle import Exclusion as Exclusion
from rotoscope.maths.exclusion_principle import exclusion as exclusion
from rotoscope.maths.head import RotaryHead as RotaryHead
from rotoscope.maths.head_discrepancy import discrepancy as discrepancy
from rotoscope.maths.purity import CLASSES as CLASSES
from rotoscope.maths.purity import purity_class as purity_class
from rotoscope.maths.purity import purity_classes as purity_classes
from rotoscope.maths.purity import purity_codes as purity_codes
from rotoscope.maths.rotation import counterfactual_logits as counterfactual_logits
from rotoscope.maths.rotation import split_planes as split_planes
from rotoscope.maths.rotation import turn as turn
from rotoscope.maths.swaps import SwapDetail as SwapDetail
from rotoscope.maths.swaps import SwapScores as SwapScores
from rotoscope.maths.swaps import swap_scores as swap_scores
