"""Models we train ourselves."""

from typing import TYPE_CHECKING

from rotoscope.lazy import attach

if TYPE_CHECKING:
    from rotoscope.lab.checkpoints import Training as Training
    from rotoscope.lab.checkpoints import save_checkpoint as save_checkpoint
    from rotoscope.lab.checkpoints import sequences_for as sequences_for
    from rotoscope.lab.checkpoints import word_tokenizer as word_tokenizer
    from rotoscope.lab.gptj import GPTJ as GPTJ
    from rotoscope.lab.gptj import GPTJShape as GPTJShape
    from rotoscope.lab.sequences import model_shape as model_shape
    from rotoscope.lab.sequences import training_sequences as training_sequences
    from rotoscope.lab.settings import TrainSettings as TrainSettings
    from rotoscope.lab.settings import WatchSettings as WatchSettings
    from rotoscope.lab.toy import ToyHeads as ToyHeads
    from rotoscope.lab.toy import ToySettings as ToySettings
    from rotoscope.lab.toy_settings import CanonicalSettings as CanonicalSettings
    from rotoscope.lab.toy_settings import ToyTraining as ToyTraining
    from rotoscope.lab.trainer import Trainer as Trainer
    from rotoscope.lab.training import Evaluation as Evaluation
    from rotoscope.lab.training import train as train

__getattr__, __dir__, __all__ = attach(__name__, __file__)
