"""Hugging Face Trainer: batches come from a loader of ours as they are; Accelerate neither slices nor dispatches them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from shardprep.errors import ConfigError
from shardprep.torch.batch import TorchBatch
from shardprep.torch.loader import TorchLoader

__all__ = ["ShardTrainer", "ShardTrainerMixin", "causal_lm_inputs"]

Inputs = Callable[[TorchBatch], dict[str, Any]]


def causal_lm_inputs(batch: TorchBatch) -> dict[str, Any]:
    """Return what a causal language model takes; labels are -100 on padding and on filler rows."""
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "labels": batch.labels}


class TrainerBatches(IterableDataset[dict[str, Any]]):
    """A TorchLoader as Trainer wants it: dictionaries, and after a resume as many placeholders as Trainer skips.

    Trainer passes over the batches of a resumed epoch that were trained on; here they are None and cost nothing.
    """

    batch_size = None
    drop_last = False

    def __init__(self, loader: TorchLoader, inputs: Inputs) -> None:
        super().__init__()
        self.loader = loader
        self.placeholders = True
        self._inputs = inputs
        self._resumed: tuple[int, int] | None = None  # epoch, step

    @property
    def dataset(self) -> TrainerBatches:
        """Return itself: Trainer looks at a loader's data set."""
        return self

    def __len__(self) -> int:
        """Return the micro-batches of this rank in an epoch."""
        return len(self.loader)

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from a state of the loader."""
        self.loader.load_state_dict(state)
        self._resumed = (int(state["epoch"]), int(state["step"]))

    def set_epoch(self, epoch: int) -> None:
        """Play this epoch next; an epoch that is resumed goes on where it was."""
        if self._resumed is None or self._resumed[0] != epoch:
            self._resumed = None
            self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        """Yield the inputs of the model, batch by batch."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None and self.placeholders:
            yield from [None] * (resumed[1] * micro_batches_per_step(self.loader))
        for batch in self.loader:
            yield self._inputs(batch)


class ReaderStateCallback(TrainerCallback, ExportableState):
    """Keeps the loader's state in trainer_state.json of each checkpoint."""

    def __init__(self) -> None:
        self.batches: TrainerBatches | None = None

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        reader = None if self.batches is None else self.batches.loader.state_dict()
        return {"args": {}, "attributes": {"reader": reader}}

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Continue where the checkpoint was made."""
        del control
        if not isinstance(train_dataloader, TrainerBatches):
            return
        self.batches = train_dataloader
        if not state.global_step:
            return
        kept = state.stateful_callbacks.get(type(self).__name__)
        reader = kept and kept["attributes"].get("reader")
        if not reader:
            raise ConfigError(
                f"the checkpoint at step {state.global_step} holds no state of the reader: it was made without "
                "ShardTrainerMixin. Start training anew, or give the loader a state that belongs to this checkpoint"
            )
        loader = train_dataloader.loader
        train_dataloader.placeholders = not args.ignore_data_skip
        train_dataloader.resume(reader)
        if args.ignore_data_skip and len(loader) % args.gradient_accumulation_steps:
            raise ConfigError(
                f"an epoch's last step has fewer micro-batches ({len(loader)} a rank, gradient_accumulation_steps="
                f"{args.gradient_accumulation_steps}), which Trainer gets wrong after a resume with ignore_data_skip=True. "
                "Leave it False: nothing is read twice here"
            )


class ShardTrainerMixin:
    """For a Trainer whose train_dataset and eval_dataset are TorchLoaders (or, for evaluation, a dict of them).

    inputs   makes the model's inputs of a batch; override it, or set `inputs_of`. Default: `causal_lm_inputs`

    Batches are used as they come: sizes and workers in TrainingArguments do not count. gradient_accumulation_steps must be
    the micro-batches of a loader's step. The loader's state goes into each checkpoint, and comes back on a resume, on any
    world size for which that number fits. eval_loss is the mean over all targets of the split, filler rows left out.
    """

    inputs_of: Inputs = staticmethod(causal_lm_inputs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(ReaderStateCallback)  # type: ignore[attr-defined]
        self._eval_sums: torch.Tensor | None = None

    def get_train_dataloader(self) -> Any:
        """Return the train loader, checked against gradient_accumulation_steps."""
        loader, args = self.train_dataset, self.args  # type: ignore[attr-defined]
        wanted = micro_batches_per_step(_loader(loader, "train_dataset"))
        if args.gradient_accumulation_steps != wanted:
            policy, plan = loader.loader.plan.policy, loader.loader.plan
            raise ConfigError(
                f"gradient_accumulation_steps is {args.gradient_accumulation_steps}, but a step of the loader has {wanted} "
                f"micro-batches on each rank (accumulate={policy.accumulate} x {plan.per_round} for {policy.slots} slots on "
                f"{plan.world.world_size} ranks): set gradient_accumulation_steps={wanted}"
            )
        return TrainerBatches(loader, self.inputs_of)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return an evaluation loader."""
        given = self.eval_dataset if eval_dataset is None else eval_dataset  # type: ignore[attr-defined]
        if isinstance(eval_dataset, str):
            given = self.eval_dataset[eval_dataset]  # type: ignore[attr-defined]
        return TrainerBatches(_loader(given, "eval_dataset"), self.inputs_of)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return a loader to predict on."""
        return TrainerBatches(_loader(test_dataset, "test_dataset"), self.inputs_of)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Evaluate as Trainer does, but for the loss: Trainer's is a mean of means of batches, filler rows and all."""
        trainer: Any = super()
        device = self.args.device  # type: ignore[attr-defined]
        self._eval_sums = torch.zeros(2, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        output = trainer.evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        loss, targets = self.accelerator.reduce(self._eval_sums, "sum").tolist()  # type: ignore[attr-defined]
        if f"{metric_key_prefix}_loss" in output.metrics and targets:
            output.metrics[f"{metric_key_prefix}_loss"] = loss / targets
        return output

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Predict, and add the loss to the sums, weighted by its targets."""
        trainer: Any = super()
        loss, logits, labels = trainer.prediction_step(model, inputs, *args, **kwargs)
        if loss is not None and self._eval_sums is not None and "labels" in inputs:
            targets = self._targets(inputs)
            if targets:
                self._eval_sums += torch.stack([loss.to(self._eval_sums) * targets, loss.new_tensor(targets)]).to(
                    self._eval_sums
                )
        return loss, logits, labels

    def _targets(self, inputs: dict[str, Any]) -> float:
        """Return how many targets the loss of these inputs is a mean over, on this rank."""
        trainer: Any = self
        counted = trainer._get_num_items_in_batch([inputs], trainer.args.device)  # noqa: SLF001  as prediction_step does
        if counted is None:  # the model takes a mean over its own targets
            return float(inputs["labels"].ne(-100).sum())
        world = trainer.accelerator.num_processes if trainer.args.average_tokens_across_devices else 1
        return float(counted) / world  # over all ranks, and so is the loss scaled


class ShardTrainer(ShardTrainerMixin, Trainer):
    """Trainer with `ShardTrainerMixin`."""


def micro_batches_per_step(loader: TorchLoader) -> int:
    """Return the micro-batches that a rank plays between two optimizer steps; fewer in an epoch's last step."""
    plan = loader.loader.plan
    return plan.policy.accumulate * plan.per_round


def _loader(given: Any, name: str) -> TorchLoader:
    if not isinstance(given, TorchLoader):
        raise ConfigError(f"{name} must be a shardprep.torch.TorchLoader here, got {type(given).__name__}")
    return given
