"""Small data sets, built once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import shardprep
from tests.cases.inputs import docs_1000
from tests.reader.data import build, lengths_of

BYTE = Path(__file__).parents[1] / "cases/tok/byte.json"


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums in one order, and no fight for the cores with other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shards(tmp_path_factory) -> Path:
    """700 rows of 1 to 300 tokens in 4 shards of train (and 4 of validation)."""
    return Path(build(tmp_path_factory.mktemp("torch"), lengths_of(700), split="train=0.9,validation=0.1"))


@pytest.fixture(scope="session")
def dataset(shards):
    return shardprep.open(shards, cache_dir=shards.parent / "cache")


def documents(folder: Path, count: int, shards: int):
    """Build the first documents of docs_1000 and open them."""
    (folder / "in").mkdir(parents=True)
    (folder / "in/docs.jsonl").write_bytes(docs_1000(count))
    shardprep.build(
        folder / "in", folder / "out", tokenizer=BYTE, id_field="id", scheduler="serial", shards=shards, progress=False
    )
    return shardprep.open(folder / "out", cache_dir=folder / "cache")


@pytest.fixture(scope="session")
def thousand(tmp_path_factory):
    return documents(tmp_path_factory.mktemp("thousand"), 1000, 5)


@pytest.fixture(scope="session")
def hundred(tmp_path_factory):
    return documents(tmp_path_factory.mktemp("hundred"), 100, 7)


@pytest.fixture(scope="session")
def hundred_and_one(tmp_path_factory):
    return documents(tmp_path_factory.mktemp("hundred-and-one"), 101, 3)
