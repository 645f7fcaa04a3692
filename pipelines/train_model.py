"""The model of train.py, and what it is asked: a transformers model, whole or with LoRA, and the loss of each row."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from shardprep.core.manifest import Manifest
from shardprep.errors import ConfigError, ShardprepError
from shardprep.report.compare_rows import RowResults
from shardprep.torch import MaskedColumn, TorchBatch

Task = Literal["classification", "causal-lm"]
TASKS = ("classification", "causal-lm")
MODES = {"loss": "min", "accuracy": "max"}  # the metrics of an evaluation, and which way is better
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ASK_EVERY = 8  # micro-batches of an evaluation between two looks at whether to stop


class RowSums(NamedTuple):
    """What a micro-batch comes to, row by row, float32 (rows,); nothing for filler rows and padding.

    loss     sum over the row's targets
    targets  how many it has: one for its label, or all tokens but the first
    correct  how many of them the model puts first, NaN for a label that the model has not; None in training: nobody asks
    """

    loss: torch.Tensor
    targets: torch.Tensor
    correct: torch.Tensor | None


def row_sums(model: nn.Module, batch: TorchBatch, task: Task, label: str, *, correct: bool = False) -> RowSums:
    """Return loss and targets of each row: one recipe for training and for evaluation."""
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # sums in half precision lose the small ones
    if task == "causal-lm":
        logits, wanted = logits[:, :-1], batch.labels[:, 1:]
        real = wanted >= 0  # -100 on padding and on filler rows
        loss = cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view(wanted.shape).sum(1)
        right = ((logits.argmax(-1) == wanted) & real).sum(1).float() if correct else None
        return RowSums(loss, real.sum(1).float(), right)
    wanted, classes = labels_of(batch, label), logits.shape[-1]
    known = (wanted >= 0) & (wanted < classes)
    loss = cross_entropy(logits, torch.where(known, wanted, 0), reduction="none")
    # A label outside makes the loss NaN, and training stops with a message; on a GPU cross_entropy would end the process.
    loss = torch.where(known | (batch.weight == 0), loss, torch.nan)
    right = torch.where(known, (logits.argmax(-1) == wanted).float(), torch.nan) * batch.weight if correct else None
    return RowSums(torch.where(batch.weight > 0, loss, 0.0), batch.weight, right)


class Evaluation(NamedTuple):
    """Means over all targets of a split, and its rows: (id, piece, loss, targets, correct), sums over the row's targets.

    Rows stand in the order of their ids, on every rank.
    """

    loss: float
    accuracy: float
    targets: int
    rows: list[tuple[str, int, float, float, float]]


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[TorchBatch], task: Task, label: str, *, cast: Any, must_stop: Callable[[], bool]
) -> Evaluation | None:
    """Evaluate a split, every row once over all ranks. None if it was told to stop meanwhile.

    All ranks play equally many micro-batches, so they ask together. Filler rows have no targets, and count nothing.
    Raises ShardprepError, on all ranks alike, if no row has a target, or one has a label that the model has not.
    """
    model.eval()
    rows: list[tuple[str, int, float, float, float]] = []
    try:
        for number, batch in enumerate(batches):
            if number % ASK_EVERY == ASK_EVERY - 1 and must_stop():
                return None
            with cast:
                sums = row_sums(model, batch, task, label, correct=True)
            piece = batch.columns.get("piece")  # of a long document that was cut into rows
            pieces = [0] * len(batch.ids) if piece is None else piece.tolist()
            table = torch.stack(sums).double().tolist()  # (loss, targets, correct) x rows
            rows += list(zip(batch.ids, pieces, *table, strict=True))[: batch.real]
    finally:
        model.train()
    if dist.is_initialized():
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, rows)
        rows = [row for part in parts for row in part]
    # One order and exact sums: the means do not hang on the number of ranks.
    rows = sorted(row for row in rows if row[3] > 0)
    if not rows:
        raise ConfigError(
            "the split to evaluate has nothing to predict: all of its rows are of one token; name another split"
        )
    if outside := [row[0] for row in rows if math.isnan(row[4])]:
        raise ShardprepError(
            f"row {outside[0]!r} of the split to evaluate has a {label} that is not in 0 ... --labels - 1; {len(outside):,} rows "
            "of it have such a one"
        )
    loss, targets, correct = (math.fsum(row[place] for row in rows) for place in (2, 3, 4))
    return Evaluation(loss / targets, correct / targets, int(targets), rows)


def write_rows(path: Path, rows: list[tuple[str, int, float, float, float]], task: Task) -> None:
    """Write the rows of an evaluation for `shardprep compare`."""
    results, (ids, pieces, losses, targets, correct) = RowResults(), zip(*rows, strict=True)
    columns: dict[str, Any] = {"loss": [loss / count for loss, count in zip(losses, targets, strict=True)]}
    if task == "causal-lm":
        columns |= {
            "tokens": list(map(int, targets)),
            "accuracy": [c / n for c, n in zip(correct, targets, strict=True)],
        }
    else:
        columns |= {"correct": [one == 1 for one in correct]}
    if any(pieces):
        columns["piece"] = list(pieces)
    results.add(ids, **columns)
    results.write(path)


def targets_of_step(batch: TorchBatch, task: Task) -> int:
    """Return the targets of the whole step, over all its micro-batches and ranks: exact, by the reader's arithmetic."""
    if task == "causal-lm":
        return max(1, batch.step_tokens - batch.step_rows)  # a row of n tokens predicts n - 1
    return batch.step_rows


def labels_of(batch: TorchBatch, label: str) -> torch.Tensor:
    """Return the label column, int64 (rows,). Raises ConfigError if it is not there, or is no column of whole numbers."""
    column = batch.columns.get(label)
    if isinstance(column, MaskedColumn):
        row = int(column.null.nonzero()[0])
        raise ConfigError(
            f"row {batch.ids[row]!r} has no {label}: classification needs one in every row; build the data set without it"
        )
    if not isinstance(column, torch.Tensor) or column.is_floating_point():
        has = ", ".join(batch.columns) or "none"
        raise ConfigError(
            f"classification needs a column {label!r} of whole numbers in the data set, which has the columns {has}: build it with "
            f"--column {label}:int64, or name another one with --label"
        )
    return column.long()


def make_model(
    place: str, task: Task, manifest: Manifest, *, labels: int | None, precision: torch.dtype, seed: int
) -> nn.Module:
    """Return the model of a folder of weights, of a configuration (a .json file: weights drawn from the seed), or a hub's name.

    Weights are float32, whatever precision they are multiplied in. Raises ConfigError where the data set does not fit it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # of reading and writing weights: logs are read by people
    from_file = place.endswith(".json")
    if not os.path.exists(place) and (from_file or place.startswith((".", "/")) or place.count("/") > 1):
        raise ConfigError(f"--model {place}: there is no such file or folder")
    config = _told(place, lambda: AutoConfig.from_pretrained(place))
    vocabulary = int(manifest.tokenizer["vocab_size"])
    if from_file and "vocab_size" not in _json(place):
        config.vocab_size = vocabulary
    config.pad_token_id = int(manifest.tokenizer["pad_id"])  # of the rows, whatever the model was trained with
    if task == "classification" and labels is not None:
        config.num_labels = labels
    _check(config, manifest, vocabulary)
    kind: Any = AutoModelForCausalLM if task == "causal-lm" else AutoModelForSequenceClassification
    torch.manual_seed(seed)  # also for a classifier's head that a folder does not hold
    if from_file:
        return _told(place, lambda: kind.from_config(config, dtype=precision))
    return _told(place, lambda: kind.from_pretrained(place, config=config, dtype=precision))


def _told(place: str, load: Callable[[], Any]) -> Any:
    """Return what was loaded. transformers has no error of its own: it says OSError or ValueError, and that in many lines."""
    try:
        return load()
    except (OSError, ValueError) as error:
        what = (
            "a folder or name of a model of transformers with its weights, or a configuration with a model_type (.json)"
        )
        raise ConfigError(
            f"--model {place} cannot be loaded, it must be {what}: {' '.join(str(error).split())}"
        ) from error


def with_lora(model: nn.Module, task: Task, *, rank: int, alpha: float, dropout: float, targets: str) -> nn.Module:
    """Return the model with LoRA (arXiv:2106.09685): only the two thin matrices of each target, and a new head, are trained."""
    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError as error:
        raise ConfigError("--lora-rank needs peft: pip install peft") from error
    chosen: Any = targets if targets == "all-linear" else targets.split(",")
    kind = TaskType.CAUSAL_LM if task == "causal-lm" else TaskType.SEQ_CLS
    config = LoraConfig(task_type=kind, r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=chosen)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning
        )  # peft 0.21 asks so
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise ConfigError(f"--lora-targets {targets}: {error}") from error


def save_model(model: nn.Module, folder: Path, *, merge: bool) -> None:
    """Save the model for from_pretrained; of one with LoRA the adapter alone, or merged into its base."""
    if not hasattr(model, "merge_and_unload"):
        model.save_pretrained(folder)
    elif merge:
        model.merge_and_unload().save_pretrained(folder)
    else:
        model.save_pretrained(
            folder, save_embedding_layers=False
        )  # they stay as they are, and a look for them asks the hub


def _check(config: Any, manifest: Manifest, vocabulary: int) -> None:
    config = config.get_text_config()
    if config.vocab_size < vocabulary:
        raise ConfigError(
            f"the data set's tokenizer has {vocabulary:,} tokens, the model's vocabulary {config.vocab_size:,}: build the data "
            "set with the model's own tokenizer"
        )
    longest = max(int(split.histogram.lengths[-1]) for g in manifest.generations for split in g.splits if split.rows)
    most = getattr(config, "max_position_embeddings", None) or longest
    if longest > most:
        raise ConfigError(
            f"the longest row has {longest:,} tokens, the model takes {most:,}: build the data set with --max-length {most}"
        )


def _json(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        document: dict[str, Any] = json.load(file)
    return document
