"""Shards that were cut or damaged: always found, and named by the byte."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.errors import ManifestError
from shardprep.formats.recordio import decode_prefix, decode_span, encode_shard
from shardprep.formats.recordio_spans import Spans
from tests.formats.records import block_of, dmlc_records, dmlc_write, record_class, record_of, rows_in

TYPES = {
    "label": "int64",
    "source": "string",
    "ok": "bool",
    "tags": "list<string>",
    "score": "float64",
    "ns": "list<int64>",
}
ROWS = [
    {
        "id": f"document {i}",
        "input_ids": [10, 35, 26455, 150_000 + i] * (i % 4),
        "label": [None, -100, 2**40, 3][i % 4],
        "source": [None, "größer", ""][i % 3],
        "ok": [None, True, False][i % 3],
        "tags": [None, [], ["x", None, "ÿ"]][i % 3],
        "score": [None, 0.5][i % 2],
        "ns": [[1, None], None, [5] * 9][i % 3],
    }
    for i in range(24)
]
BLOCK, SCHEMA = block_of(ROWS, TYPES)
SHARD = encode_shard([BLOCK.slice(0, 10), BLOCK.slice(10, 24)], SCHEMA)
INFO = SHARD.digest.info("3f2a91c0/train/00000-of-00001.rec", "train")
SPANS = Spans.parse(SHARD.spans, INFO)
HEADS = [begin for begin, _ in dmlc_records(SHARD.records)]
MIDDLE = int(SPANS.byte_starts[1])
ROW = {**ROWS[3], "ok": True, "tags": ["a"]}


def record_at(place):
    return max(head for head in HEADS if head <= place)


def test_every_flipped_bit_is_found_in_its_span_and_most_by_their_record():
    exact = 0
    for place in range(0, len(SHARD.records), 13):
        damaged = bytearray(SHARD.records)
        damaged[place] ^= 1 << place % 8
        span = int(place >= MIDDLE)
        start, stop = SPANS.byte_starts[span : span + 2].tolist()
        with pytest.raises(ManifestError, match=r"bytes? [0-9,]+") as raised:
            decode_span(SPANS, span, bytes(damaged[start:stop]))
        assert start <= raised.value.fields["byte"] <= place
        exact += raised.value.fields["byte"] == record_at(place) != start
    assert exact > len(SHARD.records) / 13 / 4, "heads, tags and lengths are a good part of small records"


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, len(SHARD.records) - 1), st.integers(0, 255)), min_size=1, max_size=5))
def test_damage_without_check_sums_is_a_manifest_error_or_other_rows(changes):
    """A pipe has no check sums: whatever the bytes are, there is an error of ours or a sound block."""
    data = bytearray(SHARD.records)
    for place, byte in changes:
        data[place] = byte
    try:
        block, used = decode_prefix(bytes(data), SCHEMA, 1000)
    except ManifestError as error:
        assert f"begins at byte {error.fields['byte']:,} " in error.message
        first = min(place for place, byte in changes if SHARD.records[place] != byte)
        assert error.fields["byte"] - 1000 in range(record_at(first), len(data))
        return
    block.columns.validate(full=True)
    assert used <= len(data)
    assert block.rows <= len(ROWS)


@given(st.binary(max_size=300) | st.binary(max_size=40).map(lambda data: dmlc_write(data) * 2))
def test_any_bytes_are_an_error_of_ours_or_no_records(data):
    try:
        block, _ = decode_prefix(data, SCHEMA)
    except ManifestError:
        return
    assert not block.rows


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_cut_span_is_named_by_the_byte_where_it_ends(cut):
    data = SHARD.records[MIDDLE:-cut]
    end = len(SHARD.records) - cut
    with pytest.raises(ManifestError, match=re.escape(f"cut off at byte {end:,}")) as raised:
        decode_span(SPANS, 1, data)
    assert raised.value.fields["byte"] in (end, record_at(end))


def test_a_cut_stream_gives_what_is_whole():
    for cut in range(0, len(SHARD.records), 41):
        block, used = decode_prefix(SHARD.records[:cut], SCHEMA)
        assert used == max([0, *(head for head in [*HEADS, len(SHARD.records)] if head <= cut)])
        assert rows_in(block) == ROWS[: block.rows]
        again, more = decode_prefix(memoryview(SHARD.records)[used:], SCHEMA, used)
        assert rows_in(again) == ROWS[block.rows :]
        assert used + more == len(SHARD.records)


@pytest.mark.parametrize("junk", [b"PAR1", bytes(4), b"\x00" * 4096, b"?" * 41])
def test_what_follows_a_whole_record_is_named_and_not_the_record(junk):
    end = len(SHARD.records)
    with pytest.raises(
        ManifestError, match=f"begins at byte {end + 100:,} does not begin with the magic word"
    ) as raised:
        decode_prefix(SHARD.records + junk, SCHEMA, 100)
    assert raised.value.fields["byte"] == end + 100
    short = bytearray(SHARD.records)
    short[HEADS[-1] + 4] -= 8
    with pytest.raises(ManifestError, match=f"begins at byte {HEADS[-1]:,} does not end with a sound uid"):
        decode_prefix(bytes(short), SCHEMA)


@pytest.mark.parametrize("bit", range(5, 8))
def test_a_flag_that_flips_is_named_by_its_record(bit):
    """What comes behind a record that seems to go on, or before a part that seems to be a later one, is sound."""
    for head in HEADS:
        data = bytearray(SHARD.records)
        data[head + 7] ^= 1 << bit
        if head == HEADS[-1] and bit == 5:  # a first part at the end looks like a record that is cut off
            assert decode_prefix(bytes(data), SCHEMA)[1] == head
            continue
        with pytest.raises(ManifestError, match=f"begins at byte {head:,} "):
            decode_prefix(bytes(data), SCHEMA)


def test_the_first_of_several_damaged_records_is_named():
    """The record whose damage is looked at last comes first: a uid, a number, a head."""
    data = bytearray(SHARD.records)
    data[HEADS[3] - 1 - (-len("document 2") % 4) - len("document 2")] ^= 1  # the length of its uid
    place = data.index(b"\x0a\x23\xd7\xce", HEADS[9] + 8, HEADS[10])  # of its ids, which are no head there
    data[place + 3] = 0xFF
    data[HEADS[20]] ^= 1
    while True:
        with pytest.raises(ManifestError) as raised:
            decode_prefix(bytes(data), SCHEMA)
        assert raised.value.fields["byte"] == HEADS[2]
        if data[HEADS[20]] == SHARD.records[HEADS[20]]:
            return
        data[HEADS[20]] = SHARD.records[HEADS[20]]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: r.ClearField("uid"), "does not end with a sound uid"),
        (lambda r: setattr(r, "metadata", "{}"), "does not end with a sound uid"),
        (lambda r: r.features["other"].bytes.value.append(b"x"), "has no sound|does not end with a sound uid"),
        (lambda r: r.features.pop("values"), "has no sound input_ids"),
        (lambda r: r.features["values"].float32_tensor.values.append(1), "has no sound input_ids"),
        (lambda r: r.features["values"].int32_tensor.shape.append(3), "has no sound input_ids"),
        (lambda r: r.features["values"].bytes.value.append(b"12345678"), "has no sound input_ids"),
        (lambda r: r.features["ok"].int32_tensor.values.__setitem__(0, 2), "has no truth value as ok"),
        (lambda r: r.features["ok"].int32_tensor.values.append(1), "has not one value as ok"),
        (lambda r: r.features["ok"].int32_tensor.ClearField("values"), "has not one value as ok"),
        (lambda r: r.features["source"].bytes.value.append(b"x"), "has not one value as source"),
        (lambda r: r.features["source"].bytes.value.__setitem__(0, b"\xc3"), "no UTF-8 as source"),
        (lambda r: r.features["tags"].bytes.value.__setitem__(0, b"\xff\xff"), "no UTF-8 as tags"),
        (lambda r: r.features["ns"].bytes.value.__setitem__(0, b"1234567"), "has no sound ns"),
        (lambda r: r.features["ns"].bytes.value.append(b""), "has no sound ns"),
        (lambda r: r.features["score"].float32_tensor.values.append(1), "has no sound score"),
        (lambda r: r.features["score"].bytes.value.append(b"12345678x"), "has no sound score"),
    ],
)
def test_records_that_are_protobuf_but_not_ours(change, why):
    sound = record_of(ROW, TYPES)
    other = record_class().FromString(sound.SerializeToString())
    other.features["source"].bytes.value[:] = [b"a"]
    sound.features["source"].bytes.value[:] = [b"a"]
    other.features["ns"].bytes.value[:] = [b"12345678"]
    sound.features["ns"].bytes.value[:] = [b"12345678"]
    change(other)
    first, second = (dmlc_write(record.SerializeToString(deterministic=True)) for record in (sound, other))
    assert decode_prefix(first * 7, SCHEMA)[0].rows == 7
    with pytest.raises(ManifestError, match=f"begins at byte {len(first) * 6:,} .*({why})"):
        decode_prefix(first * 6 + second, SCHEMA)


def test_packed_numbers_that_are_none():
    record = record_of({**ROW, "input_ids": [300] * 5}, TYPES)
    sound = record.SerializeToString(deterministic=True)
    place = sound.index(b"\xac\x02" * 5)
    for bad, why in (
        (b"\xac\x02" * 4 + b"\xac\x82", "cut off"),
        (b"\xff" * 8 + b"\x7f\x01", "no int32"),
        (b"\xff\xff\xff\xff\x0f" * 2, "no int32"),
        (b"\xac\x02" * 2 + b"\x80\x80\x80\x80\x80\x01", "no int32"),
    ):
        damaged = dmlc_write(sound[:place] + bad + sound[place + 10 :])
        with pytest.raises(ManifestError, match=f"holds a number that is {why} in its input_ids"):
            decode_prefix(damaged, SCHEMA)
    record = record_of({**ROW, "input_ids": [300] * 6}, TYPES)
    sound = record.SerializeToString(deterministic=True)
    place = sound.index(b"\xac\x02" * 6)
    with pytest.raises(ManifestError, match="holds a number of more than 64 bits in its input_ids"):
        decode_prefix(dmlc_write(sound[:place] + b"\x81" * 11 + b"\x01" + sound[place + 12 :]), SCHEMA)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "version 2, and this shardprep reads version 1; install a newer"),
        ({"rows": [0, 10, 23]}, "do not lead from the first row"),
        ({"rows": [1, 10, 24]}, "do not lead"),
        ({"rows": [0, 24]}, "do not lead"),
        ({"bytes": [0, 0, len(SHARD.records)]}, "do not lead"),
        ({"crc32": [1, -2]}, "crc32 must be whole numbers"),
        ({"index": None}, "index must be an object"),
    ],
)
def test_a_file_of_spans_that_is_wrong(change, why):
    data = json.dumps({**json.loads(SHARD.spans), **change}).encode()
    with pytest.raises(ManifestError, match="another sha256 digest than the manifest says"):
        Spans.parse(data, INFO)
    import hashlib

    told = replace(INFO, footer_sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(ManifestError, match=why):
        Spans.parse(data, told)
