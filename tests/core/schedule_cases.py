"""Data sets and policies for the tests of the schedule: drawn by Hypothesis, and workload W of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from shardprep.core.buckets import LengthBuckets, fit_edges
from shardprep.core.histogram import LengthHistogram, histogram_of, merged
from shardprep.core.schedule import Epoch, Policy, RowSet

MOST_BATCHES = 3_000  # of a drawn epoch: the oracle is plain Python


@dataclass(frozen=True)
class Case:
    sets: list[RowSet]
    buckets: LengthBuckets
    policy: Policy

    def epoch(self, number=0):
        return Epoch(self.sets, self.buckets, self.policy, number)

    def __repr__(self):
        facts = [(s.histogram.rows, s.shards, s.histogram.lengths.tolist()[:20]) for s in self.sets]
        return f"Case({facts}, {self.buckets}, {self.policy})"


def rows_of(lengths, shards=1, first_shard=0):
    """Return a generation of rows with these lengths."""
    return RowSet(histogram_of(np.asarray(lengths, dtype=np.int64)), shards, first_shard)


def lognormal(rows, seed=0):
    """Return lengths (rows,) like those of workload W: log-normal, mean 889, sigma 0.8, clipped to 8,192."""
    lengths = np.random.default_rng(seed).lognormal(0, 0.8, rows)
    return np.clip(lengths / lengths.mean() * 889, 8, 8_192).astype(np.int64)


@st.composite
def generations(draw, first_shard):
    shards = draw(st.integers(1, 40))
    rows = draw(st.one_of(st.integers(0, 60), st.integers(0, 40).map(lambda n: n * shards), st.integers(0, 6_000)))
    distinct = draw(st.sampled_from([1, 2, 5, 40, 300]))
    longest = draw(st.sampled_from([10, 100, 2_000, 9_000]))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = np.unique(chance.integers(0, longest + 1, distinct))
    share = chance.random(len(lengths)) ** 3 + 1e-9
    counts = chance.multinomial(rows, share / share.sum())
    return RowSet(LengthHistogram(lengths[counts > 0], counts[counts > 0].astype(np.int64)), shards, first_shard)


@st.composite
def cases(draw):
    """1 to 3 generations of 1 to 40 shards; G 1 to 64; both tails, both ways of padding, all that decides the rounds."""
    sets = []
    for _ in range(draw(st.integers(1, 3))):
        first = sets[-1].first_shard + sets[-1].shards + draw(st.integers(0, 1)) if sets else 0
        sets.append(draw(generations(first)))
    multiple = draw(st.sampled_from([1, 8]))
    whole = merged([s.histogram for s in sets])
    buckets = LengthBuckets((), multiple)
    if draw(st.booleans()):
        edges = draw(st.sets(st.integers(1, 2_000 // multiple), max_size=30))
        buckets = LengthBuckets(tuple(sorted(edge * multiple for edge in edges)), multiple)
    elif whole.rows and draw(st.booleans()):
        buckets = fit_edges(whole, draw(st.sampled_from([2, 8, 32])), multiple)
    tokens = draw(st.none() | st.sampled_from([1, 1_000, 4_096, 14_400, 65_536]))
    size = (
        draw(st.sampled_from([1, 2, 5, 16, 100]) | st.none()) if tokens else draw(st.sampled_from([1, 2, 5, 16, 100]))
    )
    policy = Policy(
        slots=draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 24, 33, 64])),
        batch_tokens=tokens,
        batch_size=size,
        accumulate=draw(st.integers(1, 8)),
        variety=draw(st.sampled_from([0, 0, 1, 2, 3, 6])),
        window_rows=draw(st.sampled_from([1, 50, 300, 2_000, 5_000])),
        tail=draw(st.sampled_from(["pad", "drop"])),
        shuffle=draw(st.sampled_from([True, True, False])),
        seed=draw(st.integers(-5, 99)),
        pad_to=draw(st.sampled_from(["round", "edge"])),
    )
    return Case(sets, buckets, policy)


def short(case):
    """Tell whether an epoch is short enough to be played by the oracle."""
    return case.epoch().rounds * case.policy.slots <= MOST_BATCHES
