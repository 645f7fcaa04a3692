"""A small data set with uneven rows, a small model, and pipelines/train.py in this process and in others."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import shardprep
from tests.torch.running import ROOT

sys.path.insert(0, str(ROOT / "pipelines"))  # as it is for a program in that folder

WORDS = 60


class WordTokens:
    """A tokenizer for texts of numbers below 60: "7 31" is the two tokens 7 and 31."""

    fingerprint = "22" * 32
    vocab_size = WORDS
    pad_id = 0

    def encode_batch(self, texts):
        rows = [np.array(text.split(), np.int32) for text in texts]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return np.concatenate([np.zeros(0, np.int32), *rows]), offsets


def documents(count: int, *, seed: int = 0) -> list[dict[str, object]]:
    """Return documents of 2 to 60 words; those of label k take most of their words from the k-th third of all."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        length, label = int(np.clip(rng.lognormal(2.5, 0.8), 2, 60)), int(rng.integers(3))
        own = rng.random(length) < 0.6
        words = np.where(own, label * 19 + 1 + rng.integers(19, size=length), 1 + rng.integers(WORDS - 1, size=length))
        found.append({"id": f"d{number:04d}", "label": label, "text": " ".join(map(str, words))})
    return found


def build(folder: Path, given: list[dict[str, object]], **settings: object) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "documents.jsonl").write_text("".join(json.dumps(one) + "\n" for one in given))
    wanted = {"columns": ("label:int64",), "id_field": "id", "no_eos": True, "shards": 3, **settings}
    shardprep.build(
        folder / "documents.jsonl",
        folder / "shards",
        tokenizer=WordTokens(),
        scheduler="serial",
        progress=False,
        **wanted,
    )
    return str(folder / "shards")


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=False)


@pytest.fixture(scope="session")
def shards(tmp_path_factory) -> str:
    """240 rows, 192 of them or so to train on."""
    return build(tmp_path_factory.mktemp("training"), documents(240), split="train=0.8,validation=0.2")


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, str]:
    """Configurations of a small classifier and a small language model."""
    folder = tmp_path_factory.mktemp("models")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    dropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    configurations = {
        "classification": {"model_type": "bert", "max_position_embeddings": 64, **sizes, **dropped},
        "dropout": {"model_type": "bert", "max_position_embeddings": 64, **sizes},
        "causal-lm": {"model_type": "llama", "max_position_embeddings": 64, "num_key_value_heads": 1, **sizes},
    }
    for name, configuration in configurations.items():
        (folder / f"{name}.json").write_text(json.dumps(configuration))
    return {name: str(folder / f"{name}.json") for name in configurations}


@pytest.fixture
def train(shards, models, tmp_path):
    """Run pipelines/train.py here: train("--epochs", 2, task="classification") -> exit code."""
    return Train(shards, models, tmp_path)


class Train:
    def __init__(self, shards: str, models: dict[str, str], folder: Path) -> None:
        self.shards, self.models, self.folder = shards, models, folder

    def words(
        self,
        *more: object,
        task: str = "classification",
        run: str = "run",
        model: str | None = None,
        shards: str | None = None,
    ) -> list[str]:
        labels = ["--labels", "3"] if task == "classification" else []
        given = [
            shards or self.shards, "--model", self.models.get(model or task, model), "--task", task, *labels,
            "--checkpoints", self.folder / run, "--batch-tokens", 100, "--slots", 4, "--accumulate", 2, "--lr", 0.01,
            "--warmup-steps", 3, "--cache-dir", self.folder / "cache", "--seed", 5, "--deterministic",
        ]  # fmt: skip
        return [str(word) for word in (*given, *more)]

    def __call__(self, *more: object, **named: str) -> int:
        import train

        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", category=UserWarning, message=".*rows.*"
            )  # a small validation split: said once
            return train.main(self.words(*more, **named))

    def log(self, run: str = "run") -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / run / "log.jsonl").read_text().splitlines()]

    def status(self, run: str = "run") -> dict[str, object]:
        return json.loads((self.folder / run / "status.json").read_text())

    def weights(self, run: str = "run", step: int | None = None) -> dict[str, torch.Tensor]:
        from train_state import Checkpoints

        checkpoints = Checkpoints(self.folder / run)
        return checkpoints.load(step or checkpoints.steps()[-1])["model"]
