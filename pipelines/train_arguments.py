"""The words of train.py: flags, and in a SageMaker training job its channel, hyperparameters and folders."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from typing import NoReturn

from train_model import MODES, PRECISIONS, TASKS

from shardprep.adapters.sagemaker import TrainingEnvironment
from shardprep.errors import ConfigError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Tell it as any other error: a training job then has it as its reason."""
        raise ConfigError(f"{message}; --help lists what there is")


def parse(words: list[str], about: str, job: TrainingEnvironment | None) -> argparse.Namespace:
    """Return what was asked for. In a SageMaker job its channel, hyperparameters and folders come first, words win over them."""
    parser = _Parser(
        prog="train.py", description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    count, above_0 = _number(int, 1), _number(float, 0, above=True)
    yes_or_no = {"type": _switch, "nargs": "?", "const": True, "default": False, "metavar": "true|false"}
    of = parser.add_argument
    of("shards", nargs="?", help="a data set: folder or URI; in SageMaker: the channel's folder")
    of("--task", choices=TASKS, default="causal-lm")
    of(
        "--model",
        required=True,
        help="a folder of transformers, a configuration (.json: random weights), or a name of the hub",
    )
    of("--label", default="label", help="column of whole numbers, for classification")
    of("--labels", type=count, help="how many classes there are; default: the model's")
    of("--checkpoints", help="folder of checkpoints, logs and accounts; default in SageMaker: /opt/ml/checkpoints")
    of("--output", help="folder of the trained model; default: CHECKPOINTS/model, in SageMaker its model folder")
    of("--channel", help="SageMaker: channel that holds the data set, if there are several")
    of("--split", default="train")
    of("--validation", default="validation", help="split to evaluate")
    data = parser.add_argument_group("batches and steps")
    of = data.add_argument
    of("--batch-tokens", type=count, default=4096, help="padded tokens of a micro-batch, at most")
    of("--batch-size", type=count, help="rows of a micro-batch, at most")
    of("--accumulate", type=count, default=1, help="rounds of a step")
    of(
        "--slots",
        type=count,
        help="micro-batches of a round: the most ranks that are planned; default: the ranks of the first run",
    )
    of("--seed", type=_number(int, 0), default=0)
    of("--workers", type=_number(int, 0), default=0, help="processes that read; 0: threads")
    of("--cache-dir", help="where this node keeps shards")
    of("--epochs", type=count, default=3)
    of("--max-steps", type=count, help="end, and the schedule's end, after so many steps, whatever --epochs says")
    how = parser.add_argument_group("learning")
    of = how.add_argument
    of("--lr", type=above_0, default=5e-5)
    of(
        "--schedule",
        choices=("cosine", "linear", "constant"),
        default="cosine",
        help="of the learning rate after the warm-up",
    )
    of("--warmup-steps", type=_number(int, 0), default=0)
    of("--weight-decay", type=_number(float, 0), default=0.01)
    of("--clip", type=_number(float, 0), default=1.0, help="largest norm of a step's gradient; 0: no limit")
    of(
        "--precision",
        choices=("auto", *PRECISIONS),
        default="auto",
        help="auto: fp32 on a CPU; bf16, else fp16, on a GPU",
    )
    of("--gradient-checkpointing", **yes_or_no, help="less memory, about a third more computing")
    of("--deterministic", **yes_or_no, help="the same bits on every run of the same ranks; slower on a GPU")
    of("--lora-rank", type=_number(int, 0), default=0, help="0: train all weights")
    of("--lora-alpha", type=float, default=16.0)
    of("--lora-dropout", type=float, default=0.0)
    of("--lora-targets", default="all-linear", help="names of layers, with commas")
    of("--merge-lora", **yes_or_no, help="save the whole model; default: the adapter alone")
    ends = parser.add_argument_group("evaluation, checkpoints, and the end")
    of = ends.add_argument
    of("--evaluate-every", type=count, help="steps; default: an epoch")
    of("--evaluate-at-start", **yes_or_no, help="also before the first step")
    of("--metric", choices=tuple(MODES), default="loss", help="that says which checkpoint is best")
    of(
        "--patience",
        type=_number(int, 0),
        default=0,
        help="stop after so many evaluations without a better one; 0: never",
    )
    of("--min-delta", type=float, default=0.0, help="a smaller gain is none")
    of("--min-steps", type=_number(int, 0), help="no early stop before; default: the warm-up")
    of("--save-every-s", type=above_0, default=300.0, help="seconds between checkpoints; evaluations make some, too")
    of("--keep", type=count, default=2, help="last checkpoints that stay, besides the best")
    of("--max-runtime", type=above_0, help="seconds of this run; saves before")
    of("--max-usd", type=float, help="of all runs together; saves before")
    of("--max-hours", type=float, help="billed, of all runs together; saves before")
    of("--price-per-hour", type=float, help="USD, of one instance")
    of("--instances", type=int, default=1)
    of("--startup-minutes-billed", type=float, default=0.0, help="of each run, before this program begins")
    of("--log-every", type=count, default=10, help="steps between two points of TensorBoard")
    of("--tensorboard", help="folder of its charts")
    if job is not None:
        words = [*_words_of(job), *(words[1:] if words[:1] == ["train"] else words)]  # "train": the platform's argument
    # Some launchers write hyperparameters with _ where flags have -.
    chosen = parser.parse_args([_dashed(word) for word in words])
    if job is not None:
        chosen.shards = chosen.shards or _channel(job, chosen.channel)
        chosen.checkpoints = chosen.checkpoints or job.checkpoint_folder
        chosen.output = chosen.output or job.model_folder
        chosen.cache_dir = chosen.cache_dir or os.path.join(job.scratch_folder, "shardprep")
    for name in ("shards", "checkpoints"):
        if getattr(chosen, name) is None:
            parser.error(
                f"{name.upper() if name == 'shards' else '--' + name} is needed outside a SageMaker training job"
            )
    return chosen


def _number(kind: type[int | float], least: float, *, above: bool = False) -> Callable[[str], float]:
    def read(word: str) -> float:
        try:
            value = kind(word)
        except ValueError:
            value = math.nan
        if not (least < value < math.inf if above else least <= value < math.inf):
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(
                f"{what} {'above' if above else 'of at least'} {least:g} is expected, got {word!r}"
            )
        return value

    return read


def _switch(word: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if word.lower() not in known:
        raise argparse.ArgumentTypeError(f"true or false is expected, got {word!r}")
    return known[word.lower()]


def _dashed(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word


def _words_of(job: TrainingEnvironment) -> list[str]:
    pairs = ((name, value) for name, value in job.hyperparameters.items() if not name.startswith("sagemaker_"))
    return [f"--{name}={value}" for name, value in pairs if value is not None]


def _channel(job: TrainingEnvironment, name: str | None) -> str:
    known = [one for one in ("shards", "train", "training") if one in job.channels]
    name = name or (next(iter(job.channels)) if len(job.channels) == 1 else known[0] if known else "shards")
    folder = job.channel(name)
    if job.channel_modes[name] == "Pipe":
        raise ConfigError(
            f"channel {name} is in Pipe mode, which has no order to resume in: set it to FastFile or File"
        )
    return folder
