"""dmlc framing: against a reader and a writer made from the rules alone, escapes and all."""

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardprep.errors import ManifestError
from shardprep.formats.recordio_frames import HEAD_BYTES, split_records, with_heads
from tests.formats.records import MAGIC, dmlc_records, dmlc_write

U16 = struct.pack("<2H", 8970, 52951)  # two tokens of 16 bits that are the magic word
assert U16 == MAGIC
PIECES = [MAGIC, b"", b"a", b"bc", b"def", b"ghij", b"\n", b"\n#", b"\n#\xd7", b"\xce", b"\0", MAGIC[1:], b"\xff" * 9]


def framed(payloads):
    sizes = np.array([len(payload) for payload in payloads], dtype=np.int64)
    steps = HEAD_BYTES + (sizes + 3) // 4 * 4
    heads = np.cumsum(steps) - steps
    out = np.full(int(steps.sum()), 0x55, dtype=np.uint8)
    for head, payload in zip(heads.tolist(), payloads, strict=True):
        out[head + HEAD_BYTES : head + HEAD_BYTES + len(payload)] = np.frombuffer(payload, np.uint8)
    return with_heads(out, heads, sizes)


def unframed(data, base=0):
    frames = split_records(data, base)
    held = frames.data.tobytes()
    payloads = [held[a : a + n] for a, n in zip(frames.starts.tolist(), frames.sizes.tolist(), strict=True)]
    return payloads, frames


def check(payloads):
    data, heads, escapes = framed(payloads)
    data = data.tobytes()
    assert data == b"".join(map(dmlc_write, payloads))
    assert [payload for _, payload in dmlc_records(data)] == payloads
    assert [begin for begin, _ in dmlc_records(data)] == heads.tolist()
    assert escapes == sum(
        payload[i : i + 4] == MAGIC for payload in payloads for i in range(0, len(payload) // 4 * 4, 4)
    )
    found, frames = unframed(data)
    assert found == payloads
    assert frames.heads.tolist() == heads.tolist()
    assert frames.consumed == len(data)
    # The magic word at a multiple of 4 is a head, and nothing else: a reader can resynchronise.
    words = np.frombuffer(data, "<u4")
    assert int((words == 0xCED7230A).sum()) == len(payloads) + escapes


@pytest.mark.parametrize("length", range(10))
def test_payloads_of_every_length(length):
    check([bytes(range(length))])
    check([bytes(range(length))] * 3)
    check([bytes(range(9 - length)), bytes(range(length)), b""])


@pytest.mark.parametrize("before", range(6))
@pytest.mark.parametrize("behind", range(6))
def test_the_magic_word_at_every_place(before, behind):
    a, b = b"x" * before, b"y" * behind
    check([a + MAGIC + b])
    check([a + MAGIC + MAGIC + b])
    check([a + MAGIC + a + MAGIC + b, b, a + MAGIC])


def test_only_the_magic_word():
    assert dmlc_write(MAGIC) == MAGIC + struct.pack("<I", 1 << 29) + MAGIC + struct.pack("<I", 3 << 29)
    check([MAGIC])
    check([MAGIC, MAGIC * 2, MAGIC * 3, b"", MAGIC[:3], MAGIC + b"\n#\xd7"])


def test_no_records():
    check([])
    assert unframed(b"")[1].consumed == 0


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join), max_size=12))
@example([MAGIC * 5, b"", MAGIC])
def test_any_payloads(payloads):
    check(payloads)


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join), max_size=6), st.data())
def test_a_prefix_gives_the_whole_records_and_no_error(payloads, data):
    whole = b"".join(map(dmlc_write, payloads))
    cut = data.draw(st.integers(0, len(whole)))
    found, frames = unframed(whole[:cut])
    ends = [*[begin for begin, _ in dmlc_records(whole)], len(whole)]
    count = sum(end <= cut for end in ends[1:])
    assert found == payloads[:count]
    assert frames.consumed == ends[count]
    rest, _ = unframed(whole[frames.consumed :])
    assert found + rest == payloads


def test_any_bytes_like_at_any_address():
    whole = b"".join(map(dmlc_write, [b"one", MAGIC + b"two", b"3"]))
    shifted = memoryview(bytearray(b"?" + whole))[1:]
    assert unframed(shifted)[0] == unframed(np.frombuffer(whole, np.uint8))[0] == [b"one", MAGIC + b"two", b"3"]


THREE = [b"first!", b"x" * 8 + MAGIC + b"yz", b"third record"]
PLACES = [begin for begin, _ in dmlc_records(b"".join(map(dmlc_write, THREE)))]


@pytest.mark.parametrize(
    ("at", "change", "named", "why"),
    [
        (0, b"?", 0, "does not begin with the magic word"),
        (PLACES[1], b"?", PLACES[1], "does not begin with the magic word"),
        (PLACES[2] + 3, b"?", PLACES[2], "does not begin with the magic word"),
        (4, struct.pack("<I", 2), 0, "is shorter than up to the next one"),
        (4, struct.pack("<I", 60), 0, "is longer than up to the next one"),
        (PLACES[1] + 4, struct.pack("<I", 8), PLACES[1], "has parts in another order"),  # a first part that says whole
        (
            PLACES[1] + 4,
            struct.pack("<I", 3 << 29 | 8),
            0,
            "has parts in another order",
        ),  # a last part that has no first
        (PLACES[1] + 4, struct.pack("<I", 5 << 29 | 8), PLACES[1], "has parts in another order"),
        (PLACES[2] + 4, struct.pack("<I", 2 << 29 | 12), PLACES[1], "has parts in another order"),
        (14, b"!", 0, "has other bytes than zeros behind its payload"),
        (PLACES[1] + 4, struct.pack("<I", 1 << 29 | 7), PLACES[1], "has other bytes than zeros"),
        (PLACES[1] + 16, MAGIC, PLACES[1], "is longer than up to the next one"),
    ],
)
def test_damage_is_named_by_the_byte_where_the_record_begins(at, change, named, why):
    data = bytearray(b"".join(map(dmlc_write, THREE)))
    data[at : at + len(change)] = change
    if why.startswith("is longer") and at > 4:  # a magic word in the payload that nobody escaped
        data = bytearray(b"".join(map(dmlc_write, THREE[:1])) + dmlc_write(b"x" * 20) + dmlc_write(b"end"))
        data[PLACES[1] + 12 : PLACES[1] + 16] = MAGIC
    with pytest.raises(ManifestError, match=f"begins at byte {named + 100:,} {why}") as raised:
        split_records(bytes(data), 100)
    assert raised.value.fields["byte"] == named + 100


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_a_flipped_bit_never_makes_other_records_of_heads_and_padding(place, bit):
    """Heads and padding are all checked; what is flipped in a payload is for check sums to find."""
    data = bytearray(b"".join(map(dmlc_write, THREE)))
    place %= len(data)
    data[place] ^= 1 << bit
    try:
        found, frames = unframed(bytes(data))
    except ManifestError as error:
        assert 0 <= error.fields["byte"] <= place // 4 * 4
        return
    if frames.consumed < len(data):  # it looks like a record that is cut off
        assert found == THREE[: len(found)]
        return
    assert len(found) == 3
    assert sum(a != b for a, b in zip(found, THREE, strict=True)) == 1
