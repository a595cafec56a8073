"""The monitor as a callback of Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.loggers import CSVLogger

import rotoscope as rs
from rotoscope.monitor.lightning import LightningHeadMonitor
from tests.monitor.trained import TOKENS, data, equal, fresh

QUIET = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "accelerator": "cpu",
}


class Module(lightning.LightningModule):
    def __init__(self, **models: Any) -> None:
        super().__init__()
        for name, model in models.items():
            setattr(self, name, model)

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        return self.model(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: Path, module: Module, *callbacks: Any, **changes: Any) -> lightning.Trainer:
    lightning.seed_everything(1, verbose=False)
    trainer = lightning.Trainer(
        callbacks=list(callbacks),
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        **QUIET | {"max_steps": 4} | changes,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data(), batch_size=4))
    return trainer


@pytest.mark.filterwarnings("ignore")  # Lightning's own advice about loaders and trees
def test_a_fit_is_watched_and_its_weights_are_the_same(tmp_path: Path) -> None:
    plain, watched = Module(model=fresh()), Module(model=fresh())
    fit(tmp_path, plain)
    fit(tmp_path, watched, LightningHeadMonitor(TOKENS, every=3, out=tmp_path / "run", strict=True))
    assert equal(plain, watched)
    assert rs.open(tmp_path / "run").steps == [0, 3, 4]
    logged = (tmp_path / "lightning_logs" / "version_1" / "metrics.csv").read_text()
    names, *rows = [line.split(",") for line in logged.splitlines()]
    assert [row[names.index("step")] for row in rows if row[names.index("rotoscope/pure_heads")]] == ["3", "4"]


@pytest.mark.filterwarnings("ignore")
def test_steps_are_those_of_the_optimiser(tmp_path: Path) -> None:
    monitor = LightningHeadMonitor(TOKENS, every=1, out=tmp_path / "run", strict=True)
    fit(tmp_path, Module(model=fresh()), monitor, max_steps=2, accumulate_grad_batches=2)
    assert rs.open(tmp_path / "run").points["step"].tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore")
def test_which_of_two_models_must_be_said(tmp_path: Path) -> None:
    both = Module(model=fresh(), teacher=fresh())
    with pytest.raises(rs.errors.ModelError, match="holds 2 transformers models"):
        fit(tmp_path, both, LightningHeadMonitor(TOKENS))
    fit(
        tmp_path,
        both,
        LightningHeadMonitor(TOKENS, every=4, out=tmp_path / "run", model=lambda module: module.teacher),
    )
    assert rs.open(tmp_path / "run").points["fingerprint"].nunique() == 1  # the teacher does not learn
