"""The manifest: canonical bytes, every fault named, and version 1 readable for ever."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core.buckets import LengthBuckets, fit_edges
from shardprep.core.canonical import rendered
from shardprep.core.deal import rows_of_shards, tokens_of_shards
from shardprep.core.histogram import LengthHistogram, histogram_of, merged
from shardprep.core.manifest import Generation, Ledger, Manifest, ShardInfo, SplitInfo, fingerprint_of, parse
from shardprep.errors import ManifestError

GOLDEN = Path(__file__).parents[1] / "golden" / "manifest-v1.json"
SCHEMA = (
    {"name": "id", "type": "string", "nullable": False},
    {"name": "input_ids", "type": "list<int32>", "nullable": False},
    {"name": "length", "type": "int32", "nullable": False},
    {"name": "label", "type": "int64", "nullable": True},
)
TOKENIZER = {"fingerprint": "ab" * 32, "eos_id": 256, "pad_id": 257, "vocab_size": 258}


def split_info(name, lengths, shards, salt=""):
    histogram = histogram_of(np.array(lengths, dtype=np.int64))
    rows, tokens = rows_of_shards(len(lengths), max(shards, 1)), tokens_of_shards(histogram, max(shards, 1))
    infos = tuple(
        ShardInfo(
            f"3f2a91c0/{salt}{name}/{k:05d}-of-{shards:05d}.parquet", name, int(rows[k]), int(tokens[k]),
            1000 + k, f"{k:064x}", 100 + k, f"{k + 1:064x}", 2,
        )
        for k in range(shards)
    )  # fmt: skip
    return SplitInfo(name, histogram, histogram.rows, histogram.tokens, infos)


def manifest_of(*generations, **changes):
    generations = tuple(Generation(tuple(splits)) for splits in generations)
    splits = [split for generation in generations for split in generation.splits]
    rows, tokens = sum(s.rows for s in splits), sum(s.tokens for s in splits)
    buckets = fit_edges(merged([s.histogram for s in splits]), 4, 8)
    content = {"generations": generations, "schema": SCHEMA, "tokenizer": TOKENIZER, "buckets": buckets}
    values = {
        "plan": "3f2a91c0",
        "fingerprint": fingerprint_of(**content),
        "settings": {"text_field": "text", "max_length": None, "seed": 0},
        "ledger": Ledger(rows + 3, rows, {"invalid_json": 2, "missing_text": 1}, rows, tokens, objects={"read": 9}),
        "created_by": {"shardprep": "0.1.0", "pyarrow": "26.0.1"},
        "warnings": ("document w2 has 5,300,001 tokens",),
        "duplicates": {"ids": 1, "examples": ["x \U0001f600"]},
    }
    return Manifest(**{**values, **content, **changes})


def sample(**changes):
    return manifest_of(
        [split_info("train", [3, 5, 5, 8, 21, 34, 2, 7], 3), split_info("test", [4, 9], 1), split_info("none", [], 0)],
        **changes,
    )


def issues_of(call):
    with pytest.raises(ManifestError) as caught:
        call()
    return caught.value.fields["issues"]


def test_version_1_reads_for_ever():
    data = GOLDEN.read_bytes()
    manifest = parse(data)
    manifest.check()
    assert manifest == sample()
    assert manifest.to_bytes() == data
    assert manifest.fingerprint == "29574cd64af2e2ae0603b9d40a066d01f3db8f53da54616c6cc0d3b00672546e"


def test_bytes_are_lines_that_a_diff_can_show():
    text = sample().to_bytes().decode()
    assert text.endswith("}\n")
    assert sum('"sha256"' in line for line in text.splitlines()) == 4
    assert all(line.count('"sha256"') <= 1 for line in text.splitlines())
    assert json.loads(text)["shards"] == 4
    assert json.loads(text)["padding_share"] == sample().padding_share


def test_bytes_do_not_hang_on_the_order_in_which_values_came():
    manifest = sample()
    other = replace(
        manifest,
        settings=dict(reversed(manifest.settings.items())),
        ledger=replace(manifest.ledger, set_aside=dict(reversed(manifest.ledger.set_aside.items()))),
    )
    assert other.to_bytes() == manifest.to_bytes()


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["train", "validation", "test"]), st.lists(st.integers(0, 99), max_size=9)),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 5),
)
def test_round_trip(generations, shards):
    manifest = manifest_of(
        *(
            [split_info(name, lengths, min(shards, len(lengths)), f"{g}/") for name, lengths in splits.items()]
            for g, splits in enumerate(generations)
        )
    )
    manifest.check()
    again = parse(manifest.to_bytes())
    assert again == manifest
    assert again.to_bytes() == manifest.to_bytes()


def test_keys_of_later_versions_are_ignored():
    value = json.loads(sample().to_bytes())
    value["later"] = 1
    value["generations"][0]["later"] = value["ledger"]["later"] = {}
    assert parse(json.dumps(value).encode()) == sample()


def test_the_fingerprint_is_of_the_content_alone():
    base = sample()
    train, test, none = base.generations[0].splits
    content = {"generations": base.generations, "schema": SCHEMA, "tokenizer": TOKENIZER, "buckets": base.buckets}

    def changed(shard=None, **changes):
        if shard is not None:
            new = replace(train, shards=(replace(train.shards[0], **shard), *train.shards[1:]))
            changes["generations"] = (Generation((new, test, none)),)
        return fingerprint_of(**{**content, **changes})

    assert changed(shard={"name": "elsewhere/a.parquet"}) == base.fingerprint
    assert changed(tokenizer={**TOKENIZER, "vocab_size": 9, "backend": "fast"}) == base.fingerprint
    others = [
        changed(shard={"sha256": "f" * 64}),
        changed(tokenizer={**TOKENIZER, "eos_id": None}),
        changed(tokenizer={**TOKENIZER, "pad_id": 0}),
        changed(tokenizer={**TOKENIZER, "fingerprint": "cd"}),
        changed(schema=SCHEMA[:3]),
        changed(buckets=LengthBuckets((8, 64), 8)),
        changed(generations=(Generation((test, train, none)),)),
        changed(generations=(Generation((replace(train, name="x"), test, none)),)),
    ]
    assert len({base.fingerprint, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "perhaps it was cut"),
        (GOLDEN.read_bytes()[:300], "perhaps it was cut"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a shardprep manifest"),
        (b"{}", "not a shardprep manifest"),
        (b'{"version": 2}', "version 2, and this shardprep reads version 1; install a newer"),
        (b'{"version": "x"}', "version 'x'"),
    ],
)
def test_what_is_no_manifest_is_refused_by_name(data, says):
    with pytest.raises(ManifestError) as caught:
        parse(data)
    assert says in str(caught.value)


def test_every_fault_of_form_is_named_at_once():
    value = json.loads(sample().to_bytes())
    del value["plan"]
    value["fingerprint"] = 5
    value["schema"] = ["id"]
    value["buckets"]["edges"] = [16, 8]
    value["created_by"] = None
    train, test, _ = value["generations"][0]["splits"]
    train["counts"] = train["counts"][1:]
    train["shards"][1]["rows"] = -1
    train["shards"][2]["tokens"] = True
    test["lengths"] = [4, 9.5]
    value["ledger"]["set_aside"]["invalid_json"] = "two"
    assert issues_of(lambda: parse(json.dumps(value).encode())) == (
        "plan is missing",
        "fingerprint must be a string, got 5",
        "schema must hold objects",
        "buckets: bucket edges must ascend, got 16, 8",
        "generations[0].splits[0]: lengths must ascend, and each needs a count above 0",
        "generations[0].splits[0].shards[1].rows must not be negative, got -1",
        "generations[0].splits[0].shards[2].tokens must be a whole number, got True",
        "generations[0].splits[1].lengths must be whole numbers",
        "generations[0].splits[1]: lengths must ascend, and each needs a count above 0",
        "ledger.set_aside.invalid_json must be a whole number, got 'two'",
        "created_by must be an object, got None",
    )


def test_the_message_shows_ten_faults_and_counts_the_others():
    with pytest.raises(ManifestError) as caught:
        parse(b'{"version": 1}')
    assert "plan is missing" in str(caught.value)
    assert "more. Build the data set anew" in str(caught.value)


def test_the_ledger_must_add_up():
    Ledger(5, 3, {"a": 2}, 3, 9).check()
    with pytest.raises(ManifestError, match="5 documents found, 3 written and 1 set aside; 1 are not accounted for"):
        Ledger(5, 3, {"a": 1}, 3, 9).check()


def broken_split(**changes):
    """The sample with a changed first split, fingerprint made anew: only what was changed is wrong."""
    base = sample()
    train, *others = base.generations[0].splits
    train = replace(train, **changes)
    return sample_of((Generation((train, *others)),))


def sample_of(generations, **changes):
    base = sample()
    fingerprint = fingerprint_of(
        generations=generations, schema=SCHEMA, tokenizer=changes.get("tokenizer", TOKENIZER), buckets=base.buckets
    )
    return replace(base, generations=generations, **{"fingerprint": fingerprint, **changes})


def faulty():
    base = sample()
    train, test, none = base.generations[0].splits
    first = train.shards[0]
    without_pad = {"fingerprint": "x", "eos_id": 1}
    yield (
        broken_split(rows=9),
        ["the histogram counts 8 rows, the split says 9", "the splits hold 11 rows, the ledger says 10"],
    )
    yield (
        broken_split(tokens=1),
        ["the histogram counts 85 tokens, the split says 1", "the splits hold 14 tokens, the ledger says 98"],
    )
    yield broken_split(shards=()), ["split train: 8 rows and no shard"]
    yield broken_split(shards=(replace(first, split="test"), *train.shards[1:])), ["says split test, but is listed in"]
    yield broken_split(shards=(replace(first, rows=0), *train.shards[1:])), ["is empty", "has 0 rows, the deal says 3"]
    yield broken_split(shards=(replace(first, tokens=0), *train.shards[1:])), ["has 0 tokens, the deal says"]
    yield broken_split(shards=(first, first, *train.shards[2:])), ["is named 2 times", "the deal says"]
    yield sample_of((Generation((train, test, none, none)),)), ["a split is named twice in one generation"]
    yield replace(base, fingerprint="0"), ["the fingerprint is 0, but the content's is"]
    yield replace(base, ledger=replace(base.ledger, found=0)), ["the ledger does not add up"]
    yield replace(base, ledger=replace(base.ledger, rows=9)), ["the splits hold 10 rows, the ledger says 9", "but only"]
    yield sample_of(base.generations, tokenizer=without_pad), ["the tokenizer lacks pad_id"]


@pytest.mark.parametrize(("manifest", "says"), list(faulty()))
def test_what_does_not_add_up_is_named(manifest, says):
    said = " | ".join(issues_of(manifest.check))
    for words in says:
        assert words in said


def test_a_good_manifest_checks():
    sample().check()
    assert sample().shards[0].name == "3f2a91c0/train/00000-of-00003.parquet"


def test_a_histogram_is_not_confused_with_another():
    assert LengthHistogram(np.array([1]), np.array([2])) != LengthHistogram(np.array([2]), np.array([1]))


def test_canonical_json_breaks_lists_of_objects_only():
    assert rendered({"b": [1, 2], "a": {"x": []}}) == '{\n"a":{"x":[]},\n"b":[1,2]\n}'
    assert rendered([{"a": 1}, {"b": [{"c": 2}]}]) == '[\n{"a":1},\n{\n"b":[\n{"c":2}\n]\n}\n]'
    with pytest.raises(ValueError, match="not JSON compliant"):
        rendered({"x": float("nan")})
