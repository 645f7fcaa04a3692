"""Buckets, with `pad_to="edge"`: every batch holds one bucket's rows, padded to its edge; and the finer default."""

from collections import Counter
from itertools import groupby

import numpy as np
import pytest

import shardprep
from tests.cases.command import build
from tests.cases.inputs import lengths, write
from tests.cases.reading import once, real

EDGES = (32, 64, 128, 256, 512)
HELD = {32: 62, 64: 64, 128: 128, 256: 256, 512: 490}
TOKENS = 251_500


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("c25")
    write(folder / "in/lengths.jsonl", lengths())
    build(folder / "in", folder / "out", "--bucket-edges", ",".join(map(str, EDGES)))
    return shardprep.open(folder / "out", cache_dir=folder / "cache")


def padding(batches):
    return 1 - sum(int(b.lengths[b.weight > 0].sum()) for b in batches) / sum(b.input_ids.size for b in batches)


def edge_of(length):
    return next(edge for edge in EDGES if length <= edge)


@pytest.mark.parametrize("seed", [7, 8])
def test_a_batch_holds_one_bucket_and_is_padded_to_its_edge(dataset, seed):
    batches = list(dataset.loader(batch_size=8, seed=seed, num_threads=2, pad_to="edge"))
    assert Counter(name for batch in batches for name in real(batch)) == once(1000)
    rows = Counter()
    for batch in batches:
        assert {edge_of(length) for length in batch.lengths.tolist()} == {batch.input_ids.shape[1]}
        rows[batch.input_ids.shape[1]] += int(batch.weight.sum())
    assert rows == HELD
    assert sum(int(b.lengths[b.weight > 0].sum()) for b in batches) == TOKENS
    assert {batch.input_ids.shape[1] for batch in batches} == set(EDGES)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_remainders_are_shorter_last_rounds_with_less_than_one_filler_row_a_slot(dataset, world):
    loaders = [dataset.loader(batch_size=8, seed=7, pad_to="edge", rank=r, world_size=world) for r in range(world)]
    played = [list(loader) for loader in loaders]
    assert Counter(name for batches in played for batch in batches for name in real(batch)) == once(1000)
    for together in zip(*played, strict=True):
        assert len({batch.input_ids.shape for batch in together}) == 1
        assert sum(int((batch.weight == 0).sum()) for batch in together) <= world
    rounds = sum(-(-held // (8 * world)) for held in HELD.values())
    assert all(rounds <= len(batches) <= rounds + 2 * len(EDGES) for batches in played)


def test_padding_of_the_epoch_is_under_5_percent(dataset):
    """To the round's longest row: rows of a batch are close in length. To five edges: what five edges cost, and no more."""
    batches = list(dataset.loader(batch_size=8, seed=7, num_threads=2))
    assert padding(batches) < 0.05
    assert Counter(name for batch in batches for name in real(batch)) == once(1000)
    assert max(int(b.lengths.max() - b.lengths.min()) for b in batches if b.lengths.min() > 32) < 32
    at_edges = 1 - TOKENS / sum(edge * held for edge, held in HELD.items())
    edge = list(dataset.loader(batch_size=8, seed=7, num_threads=2, pad_to="edge"))
    assert padding(edge) < at_edges + 0.05
    assert 0.95 * sum(len(batch.ids) * int(batch.lengths.max()) for batch in edge) < TOKENS  # close in length here too


def test_fitted_edges_keep_padding_under_5_percent_with_pad_to_edge_too(tmp_path):
    write(tmp_path / "in/lengths.jsonl", lengths())
    build(tmp_path / "in", tmp_path / "out", "--buckets", 32)
    dataset = shardprep.open(tmp_path / "out", cache_dir=tmp_path / "cache")
    batches = list(dataset.loader(batch_size=8, seed=7, num_threads=2, pad_to="edge"))
    assert Counter(name for batch in batches for name in real(batch)) == once(1000)
    assert padding(batches) < 0.05


@pytest.mark.parametrize("pad_to", ["round", "edge"])
def test_consecutive_batches_come_from_mixed_lengths(dataset, pad_to):
    buckets = [edge_of(int(b.lengths.max())) for b in dataset.loader(batch_size=8, seed=7, pad_to=pad_to)]
    assert buckets not in (sorted(buckets), sorted(buckets, reverse=True))
    changes = sum(1 for _ in groupby(buckets)) - 1
    shares = np.array(list(HELD.values())) / 1000
    assert changes > 0.7 * len(buckets) * (1 - (shares**2).sum())  # nearly as many as if they were drawn at random


@pytest.mark.parametrize("pad_to", ["round", "edge"])
def test_the_same_seed_gives_the_same_sequence(dataset, pad_to):
    def sequence(seed, threads):
        return [batch.ids for batch in dataset.loader(batch_size=8, seed=seed, num_threads=threads, pad_to=pad_to)]

    assert sequence(7, 2) == sequence(7, 1)
    assert sequence(7, 2) != sequence(8, 2)


def test_the_longest_comes_first_so_that_memory_peaks_show_early(dataset):
    first = next(iter(dataset.loader(batch_size=8, seed=7)))
    assert first.lengths.max() == 501
