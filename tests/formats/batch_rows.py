"""Shards as plain Python rows, their views, and what a batch of chosen rows must hold."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from shardprep.core.block import TokenBlock, offsets_of
from shardprep.formats.collate import View

COLUMNS = {
    "label": pa.int64(),
    "class": pa.int64(),
    "score": pa.float64(),
    "good": pa.bool_(),
    "source": pa.string(),
    "marks": pa.list_(pa.int64()),
    "labels": pa.list_(pa.int64()),
    "tags": pa.list_(pa.string()),
}
INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = {
    "label": INT64,
    "class": INT64,
    "score": st.floats(allow_nan=False),
    "good": st.booleans(),
    "source": st.text(max_size=4),
    "marks": st.lists(st.none() | INT64, max_size=3),
    "labels": st.lists(st.none() | INT64, max_size=3),
    "tags": st.lists(st.none() | st.text(max_size=3), max_size=3),
}


@dataclass
class Row:
    id: str
    tokens: list[int]
    values: dict[str, object] = field(default_factory=dict)


@dataclass
class Spec:
    """A micro-batch in the form of core/schedule.py, with all of its numbers different."""

    shard: np.ndarray
    row: np.ndarray
    real: int
    length: int
    round: int = 11
    slot: int = 12
    step: int = 13
    step_rows: int = 14
    step_tokens: int = 15
    last_in_step: bool = False
    epoch: int = 16
    name: str = "task"


def view_of(rows, first=0, lead=0):
    """A view whose tokens begin `lead` tokens into their array, and whose first row is number `first` of its shard."""
    tokens = np.array([-1] * lead + [t for row in rows for t in row.tokens], dtype=np.int32)
    tokens.flags.writeable = False  # as a mapped file is
    offsets = offsets_of(np.array([len(row.tokens) for row in rows], dtype=np.int64)) + lead
    names = list(rows[0].values) if rows else []
    columns = pa.record_batch(
        {
            "id": pa.array([row.id for row in rows], type=pa.string()),
            **{name: pa.array([row.values[name] for row in rows], type=COLUMNS[name]) for name in names},
        }
    )
    return View(TokenBlock(tokens, offsets, columns), first)


@st.composite
def some_rows(draw, shard, names=()):
    count = draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
    return [
        Row(
            id=f"s{shard}r{i}",
            tokens=draw(st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n)),
            values={name: draw(st.none() | VALUES[name]) for name in names},
        )
        for i, n in enumerate(lengths)
    ]


@st.composite
def cases(draw, names=()):
    """Views over one to three shards, where they begin, and a spec: (rows by (shard, place), views, spec)."""
    shards = draw(st.lists(st.integers(0, 50), min_size=1, max_size=3, unique=True))
    rows, views = {}, {}
    for shard in shards:
        some, first = draw(some_rows(shard, names)), draw(st.integers(0, 1000))
        views[shard] = view_of(some, first, draw(st.integers(0, 3)))
        rows |= {(shard, first + i): row for i, row in enumerate(some)}
    return rows, views, draw(specs(rows))


@st.composite
def specs(draw, rows):
    keys = draw(st.lists(st.sampled_from(sorted(rows)), min_size=1, max_size=8))
    kind = draw(st.sampled_from([np.int32, np.int64]))
    longest = max(len(rows[key].tokens) for key in keys)
    return Spec(
        shard=np.array([shard for shard, _ in keys], dtype=kind),
        row=np.array([place for _, place in keys], dtype=np.int64),
        real=draw(st.integers(0, len(keys))),
        length=longest + draw(st.integers(0, 9)),
        round=draw(st.integers(0, 99)),
        slot=draw(st.integers(-1, 9)),
        step=draw(st.integers(0, 99)),
        step_rows=draw(st.integers(0, 99)),
        step_tokens=draw(st.integers(0, 99)),
        last_in_step=draw(st.booleans()),
        epoch=draw(st.integers(0, 99)),
        name=draw(st.sampled_from(["", "task", "general"])),
    )


def chosen(rows, spec):
    return [rows[key] for key in zip(spec.shard.tolist(), spec.row.tolist(), strict=True)]


def assert_right(batch, rows, spec, pad_id, **facts):
    """The batch is what plain Python makes of the rows; facts: what was given beside the spec."""
    picked = chosen(rows, spec)
    padded = spec.length
    padding = [padded - len(row.tokens) for row in picked]
    ids = [row.tokens + [pad_id] * pad for row, pad in zip(picked, padding, strict=True)]
    mask = [[1] * len(row.tokens) + [0] * pad for row, pad in zip(picked, padding, strict=True)]
    labels = [
        row.tokens + [-100] * pad if i < spec.real else [-100] * padded
        for i, (row, pad) in enumerate(zip(picked, padding, strict=True))
    ]
    for array, want in ((batch.input_ids, ids), (batch.attention_mask, mask), (batch.labels, labels)):
        assert array.dtype == np.int64
        assert array.shape == (len(picked), padded)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.tolist() == want
    assert batch.lengths.dtype == np.int64
    assert batch.lengths.tolist() == [len(row.tokens) for row in picked]
    assert batch.weight.dtype == np.float32
    assert batch.weight.tolist() == [1.0] * spec.real + [0.0] * (len(picked) - spec.real)
    assert batch.ids == [row.id for row in picked]
    assert (batch.real, batch.tokens) == (spec.real, sum(len(row.tokens) for row in picked[: spec.real]))
    place = (spec.round, spec.slot, spec.step, spec.step_rows, spec.step_tokens)
    assert (batch.round, batch.slot, batch.step, batch.step_rows, batch.step_tokens) == place
    for name in ("last_in_step", "epoch", "name"):
        want = facts.get(name, getattr(spec, name))
        assert (getattr(batch, name), type(getattr(batch, name))) == (want, type(want)), name


def assert_same(one, other):
    """Two batches are the same, to the byte."""
    for name in ("input_ids", "attention_mask", "lengths", "weight", "labels"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name
    assert one.ids == other.ids
    assert plain_columns(one.columns) == plain_columns(other.columns)
    for name in (
        "round",
        "slot",
        "step",
        "step_rows",
        "step_tokens",
        "last_in_step",
        "epoch",
        "name",
        "real",
        "tokens",
    ):
        a, b = getattr(one, name), getattr(other, name)
        assert (type(a), a) == (type(b), b), name


def plain_columns(columns):
    return {name: plain(value) for name, value in columns.items()}


def plain(value):
    """A column's values as Python ones, with None for what is masked."""
    if isinstance(value, tuple):
        values, offsets = value
        flat, ends = plain(values), offsets.tolist()
        missing = [False] * (len(ends) - 1) if value.null is None else value.null.tolist()
        return [None if missing[i] else flat[ends[i] : ends[i + 1]] for i in range(len(ends) - 1)]
    return value.tolist() if isinstance(value, np.ndarray) else value
