"""Models we train ourselves."""

from rotoscope.lab.checkpoints import save_checkpoint, sequences_for, word_tokenizer
from rotoscope.lab.data import export_dataset
from rotoscope.lab.gptj import GPTJ, GPTJShape
from rotoscope.lab.toy import ToyHeads, ToySettings
from rotoscope.lab.training import Evaluation, Trainer, TrainSettings, train

__all__ = [
    "GPTJ",
    "Evaluation",
    "GPTJShape",
    "ToyHeads",
    "ToySettings",
    "TrainSettings",
    "Trainer",
    "export_dataset",
    "save_checkpoint",
    "sequences_for",
    "train",
    "word_tokenizer",
]
