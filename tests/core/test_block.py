"""TokenBlock against plain Python lists of rows."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core import block as block_module
from shardprep.core.block import IDS_FIELD, TokenBlock, concat, offsets_of
from shardprep.errors import BlockError

rows_of_ids = st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=8)


def block_of(rows):
    ids = np.array([i for row in rows for i in row], dtype=np.int32)
    columns = pa.record_batch(
        {"id": pa.array([str(n) for n in range(len(rows))], pa.string()), "n": pa.array(range(len(rows)), pa.int64())}
    )
    return TokenBlock(ids, offsets_of(np.array([len(row) for row in rows], dtype=np.int64)), columns)


def rows_in(block):
    rows = [block.ids[a:b].tolist() for a, b in zip(block.offsets[:-1], block.offsets[1:], strict=True)]
    return list(zip(rows, block.columns.column("id").to_pylist(), strict=True))


@given(rows_of_ids)
def test_a_block_knows_its_rows(rows):
    block = block_of(rows)
    assert (block.rows, block.tokens) == (len(rows), sum(map(len, rows)))
    assert block.lengths.tolist() == list(map(len, rows))
    assert [row for row, _ in rows_in(block)] == rows


@given(rows_of_ids.filter(len), st.data())
def test_take_and_slice_follow_plain_lists(rows, data):
    block, plain = block_of(rows), rows_in(block_of(rows))
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    assert rows_in(block.take(np.array(wanted, dtype=np.int64))) == [plain[i] for i in wanted]
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    part = block.slice(start, stop)
    assert rows_in(part) == plain[start:stop]
    assert rows_in(part.take(np.arange(part.rows))) == plain[start:stop]


@given(rows_of_ids, rows_of_ids)
def test_concat_follows_plain_lists(first, second):
    whole = concat([block_of(first), block_of([[1], *second]).slice(1, len(second) + 1)])
    assert [row for row, _ in rows_in(whole)] == [*first, *second]


@given(rows_of_ids.filter(len))
def test_arrow_and_back(rows):
    batch = block_of(rows).to_batch()
    assert batch.schema.names == ["id", "input_ids", "n"]
    assert batch.schema.field("input_ids").equals(IDS_FIELD)
    assert batch.column("input_ids").to_pylist() == rows
    assert rows_in(TokenBlock.from_batch(batch.slice(1))) == rows_in(block_of(rows))[1:]


def test_offsets_and_columns_must_agree():
    with pytest.raises(BlockError, match="2 rows of columns, but 2 offsets"):
        TokenBlock(np.zeros(1, np.int32), np.array([0, 1]), block_of([[1], [2]]).columns)


def test_no_blocks_have_no_columns():
    with pytest.raises(BlockError, match="no blocks"):
        concat([])


def test_a_batch_holds_as_many_tokens_as_32_bit_offsets_can_say(monkeypatch):
    monkeypatch.setattr(block_module, "MAX_BLOCK_TOKENS", 3)
    with pytest.raises(BlockError, match="at most 3 tokens, got 4"):
        block_of([[1, 2], [3, 4]]).to_batch()
    assert block_of([[1, 2], [3]]).to_batch().num_rows == 2
