"""Models we train ourselves."""

from rotoscope.lab.checkpoints import save_checkpoint, sequences_for, word_tokenizer
from rotoscope.lab.data import export_dataset
from rotoscope.lab.gptj import GPTJ, GPTJShape
from rotoscope.lab.sequences import model_shape, training_sequences
from rotoscope.lab.toy import ToyHeads, ToySettings
from rotoscope.lab.trainer import Trainer
from rotoscope.lab.training import Evaluation, train
from rotoscope.settings import TrainSettings

__all__ = [
    "GPTJ",
    "Evaluation",
    "GPTJShape",
    "ToyHeads",
    "ToySettings",
    "TrainSettings",
    "Trainer",
    "export_dataset",
    "model_shape",
    "save_checkpoint",
    "sequences_for",
    "train",
    "training_sequences",
    "word_tokenizer",
]
