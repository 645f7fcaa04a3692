"""Lightning: a TorchLoader is a loader like any other; its state lies in Lightning's checkpoints."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Lightning's own imports
    import lightning

from pipelines.train_ddp import TinyLM, summed_loss
from shardprep.torch import TorchLoader

SIZES = {"batch_tokens": 1_500, "slots": 2, "rank": 0, "world_size": 1}

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .*dataloader.* does not have many workers",
    "ignore:.*isinstance.treespec, LeafSpec.",
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    "ignore:Checkpoint directory .* exists and is not empty",
)


class Killed(Exception):
    """The machine was taken away."""


class Module(lightning.LightningModule):
    def __init__(self, save_at=None, path=None):
        super().__init__()
        torch.manual_seed(0)
        self.model = TinyLM(701, 8)
        self.rows, self.losses, self.validated, self.save_at, self.path = {}, {}, [], save_at, path

    def training_step(self, batch, _):
        # Lightning divides by accumulate_grad_batches, and this loss is that of the whole step already.
        loss = summed_loss(self.model, batch) / (batch.step_tokens - batch.step_rows)
        at = (batch.epoch, batch.step)
        self.rows.setdefault(at, []).extend(batch.ids[: batch.real])
        self.losses[at] = self.losses.get(at, 0.0) + loss.item()
        return loss * self.trainer.accumulate_grad_batches

    def on_train_batch_end(self, *_):
        if self.trainer.global_step == self.save_at:
            self.trainer.save_checkpoint(self.path)
            raise Killed

    def validation_step(self, batch, _):
        self.validated.append((self.trainer.sanity_checking, batch.ids[: batch.real]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def trainer(**more):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    given = {"max_epochs": 2, "accumulate_grad_batches": 4, "num_sanity_val_steps": 2, **quiet, **more}
    return lightning.Trainer(accelerator="cpu", devices=1, **given)


def loaders(dataset, workers=0):
    train = TorchLoader(dataset.loader(**SIZES, accumulate=2), num_workers=workers, persistent_workers=workers > 0)
    return train, TorchLoader(dataset.loader("validation", **SIZES, shuffle=False))


def test_a_sanity_run_of_two_batches_costs_no_rows(dataset):
    module = Module()
    train, validation = loaders(dataset, 1)
    trainer().fit(module, train, validation)
    train.close()
    sanity = [ids for checking, ids in module.validated if checking]
    assert len(sanity) == 2
    real = [name for checking, ids in module.validated if not checking for name in ids]
    assert sorted(real) == sorted(2 * sorted(set(real)))
    assert len(set(real)) == dataset.splits["validation"]
    for epoch in range(2):
        rows = [name for at, ids in module.rows.items() if at[0] == epoch for name in ids]
        assert len(rows) == len(set(rows)) == dataset.splits["train"]


def test_a_checkpoint_in_the_middle_of_an_epoch_continues_exactly(dataset, tmp_path):
    whole = Module()
    trainer().fit(whole, loaders(dataset)[0])
    steps = loaders(dataset)[0].steps
    for save_at in (3, steps + 2):
        path = tmp_path / f"{save_at}.ckpt"
        first, again = Module(save_at, path), Module()
        with pytest.raises(Killed):
            trainer().fit(first, loaders(dataset)[0])
        trainer().fit(again, loaders(dataset)[0], ckpt_path=path, weights_only=False)
        assert {**first.losses, **again.losses} == whole.losses
        assert len(first.losses) + len(again.losses) == len(whole.losses)
        assert {**first.rows, **again.rows} == whole.rows


def test_a_checkpoint_of_a_finished_epoch_goes_on_with_the_next(dataset, tmp_path):
    whole, first, again = Module(), Module(), Module()
    trainer().fit(whole, loaders(dataset)[0])
    one_epoch = trainer(max_epochs=1)
    one_epoch.fit(first, loaders(dataset)[0])
    one_epoch.save_checkpoint(tmp_path / "end.ckpt")
    trainer().fit(again, loaders(dataset)[0], ckpt_path=tmp_path / "end.ckpt", weights_only=False)
    assert {at[0] for at in again.losses} == {1}
    assert {**first.losses, **again.losses} == whole.losses
