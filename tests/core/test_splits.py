"""The split of a document hangs on its id alone."""

from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core.splits import Splits, id_hashes, parse_splits, split_of
from shardprep.errors import ConfigError

IDS = ["a", "doc-1", "dir/x.json#17", "\U0001f600", ""]
GOLDEN_HASHES = [
    "0x2f42665b399ef840",
    "0x41f5345f287af456",
    "0x397a678949702584",
    "0x70e72ae2eb8bf0f5",
    "0xb4b2797457a0a6e4",
]
GOLDEN_SPLITS = [0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1]


def plain_split(text, parts):
    """The rule in plain Python: (hash / 2**64) against exact cumulative fractions."""
    place = Fraction(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little"), 2**64)
    total = Fraction(0)
    for index, part in enumerate(parts[:-1]):
        total += part
        if place < total:
            return index
    return len(parts) - 1


def test_golden_hashes():
    assert [hex(h) for h in id_hashes(IDS).tolist()] == GOLDEN_HASHES


def test_golden_splits():
    splits = parse_splits("train=0.5,validation=0.3,test=0.2")
    assert split_of([f"doc-{i}" for i in range(12)], splits).tolist() == GOLDEN_SPLITS


def test_no_split_asked_for_is_all_train():
    assert Splits().names == ("train",)
    assert split_of(IDS, Splits()).tolist() == [0] * len(IDS)


@given(
    st.lists(st.text(max_size=6).filter(lambda s: s.isprintable()), max_size=20),
    st.lists(st.integers(1, 1000), min_size=1, max_size=4),
)
def test_follows_plain_python(ids, weights):
    parts = tuple(Fraction(w, sum(weights)) for w in weights)
    splits = Splits(tuple(f"s{i}" for i in range(len(parts))), parts)
    assert split_of(ids, splits).tolist() == [plain_split(i, parts) for i in ids]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_arrow_ids_are_the_same_as_python_ids(kind):
    splits = parse_splits("a=0.5,b=0.5")
    array = pa.array(["x", *IDS], kind).slice(1)
    assert split_of(array, splits).tolist() == split_of(IDS, splits).tolist()


def test_growing_the_input_moves_nothing():
    splits = parse_splits("train=0.7,test=0.3")
    ids = [f"k{i}" for i in range(500)]
    assert split_of(ids[100:] + ids[:100], splits).tolist() == np.roll(split_of(ids, splits), -100).tolist()


def test_a_third_split_at_the_end_takes_from_its_neighbour_only():
    ids = [f"k{i}" for i in range(2000)]
    two = split_of(ids, parse_splits("train=0.8,validation=0.2"))
    three = split_of(ids, parse_splits("train=0.8,validation=0.1,test=0.1"))
    assert ((two == 0) == (three == 0)).all()
    assert (three[three != two] == 2).all()
    assert (three == 2).any()


def test_shares_are_what_was_asked_for():
    counts = np.bincount(split_of([str(i) for i in range(20_000)], parse_splits("train=0.9,validation=0.1")))
    assert counts[1] / 20_000 == pytest.approx(0.1, abs=0.01)


def test_order_and_exact_fractions_are_kept():
    splits = parse_splits(" validation=0.1 , train = 9e-1")
    assert splits.names == ("validation", "train")
    assert splits.fractions == (Fraction(1, 10), Fraction(9, 10))
    assert str(splits) == "validation=0.1,train=0.9"


def test_sums_to_one_within_a_billionth():
    third = "0.3333333333"
    splits = parse_splits(f"a={third},b={third},c={third}")
    assert sum(splits.fractions) == Fraction(Decimal("0.9999999999"))
    assert parse_splits("a=1.0000000001,b=0.0000000001").names == ("a", "b")  # the first takes all but one hash


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "name=fraction"),
        ("train", "name=fraction"),
        ("train=much", "'train=much'"),
        ("train=nan", "name=fraction"),
        ("train=0.9,validation=0.2", "sum to 1, got 1.1"),
        ("train=0.9", "sum to 1, got 0.9"),
        ("train=1,test=0", "test must be above 0"),
        ("train=1.5,test=-0.5", "test must be above 0"),
        ("train=1e999999999", "at most 1, and at least 1e-30; got 'train=1e999999999'"),
        ("train=1,test=1e-999999999", "at least 1e-30"),
        ("train=0.5,train=0.5", "named once"),
        ("Train=1", "'Train'"),
        ("../x=1", "'../x'"),
    ],
)
def test_a_wrong_text_is_refused_and_quoted(text, says):
    with pytest.raises(ConfigError) as caught:
        parse_splits(text)
    assert says in str(caught.value)


def test_names_and_fractions_come_in_pairs():
    with pytest.raises(ConfigError, match="a name and a fraction each"):
        Splits(("a", "b"), (Fraction(1),))
