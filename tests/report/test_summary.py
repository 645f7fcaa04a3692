from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from shardprep.core.histogram import histogram_of
from shardprep.formats.reasons import Reason
from shardprep.report.measures import buckets_in_use, longest, measures_of, percentiles
from shardprep.report.reasons import IN_WORDS, in_words
from shardprep.report.summary import summary_json, summary_text


def test_percentiles_are_lengths_of_rows_that_exist() -> None:
    histogram = histogram_of(np.arange(1, 101))
    assert percentiles(histogram) == {0: 1, 5: 5, 25: 25, 50: 50, 75: 75, 95: 95, 99: 99, 100: 100}
    assert percentiles(histogram_of(np.array([7]))) == dict.fromkeys((0, 5, 25, 50, 75, 95, 99, 100), 7)
    assert percentiles(histogram_of(np.zeros(0, np.int64))) == {}


def test_the_longest_come_first() -> None:
    assert longest(histogram_of(np.array([1, 5, 5, 9])), 2) == [(9, 1), (5, 2)]


def test_buckets_in_use_hold_every_row_once(natural) -> None:
    measures = measures_of(natural)
    assert sum(bucket.rows for bucket in measures.buckets) == 3000
    assert sum(bucket.tokens for bucket in measures.buckets) == natural.ledger.tokens
    slots = sum(bucket.slots for bucket in measures.buckets)
    assert 1 - natural.ledger.tokens / slots == pytest.approx(natural.padding_share, abs=1e-6)


def test_rows_beyond_the_last_edge_have_a_bucket_that_ends_at_the_longest(make_manifest, make_split) -> None:
    manifest = make_manifest(make_split("train", [5, 20, 300], 1))
    edges = replace(manifest.buckets, edges=(8, 64))
    last = buckets_in_use(manifest.generations[0].splits[0].histogram, edges)[-1]
    assert (last.above, last.edge, last.rows, last.slots) == (64, 300, 1, 304)


def test_balance_is_the_worst_of_the_splits(make_manifest, make_split) -> None:
    measures = measures_of(make_manifest(make_split("train", [10, 10], 2), make_split("test", [10, 30], 2)))
    assert [split.balance for split in measures.splits] == [1.0, 3.0]
    assert measures.balance == 3.0


def test_generations_are_added_up(make_manifest, make_split) -> None:
    first, second = make_manifest(make_split("train", [10, 20], 2)), make_manifest(make_split("train", [20, 40], 1))
    both = replace(first, generations=first.generations + second.generations)
    split = measures_of(both).splits[0]
    assert (split.histogram.rows, split.histogram.tokens, len(split.shards)) == (4, 90, 3)


def test_json_says_what_a_program_asks_for(natural) -> None:
    value = json.loads(json.dumps(summary_json(natural)))
    assert (value["found"], value["written"], value["set_aside"]) == (
        3003,
        3000,
        {"invalid_json": 2, "lone_surrogate": 1},
    )
    assert (value["rows"], value["tokens"], value["shards"]) == (3000, natural.ledger.tokens, 14)
    assert value["fingerprint"] == natural.fingerprint
    assert value["padding_share"] == pytest.approx(natural.padding_share, abs=1e-6)
    assert value["padding_share"] < 0.1
    assert value["random_padding_share"] > 0.6
    assert list(value["splits"]) == ["train", "validation"]
    assert value["splits"]["validation"]["rows"] == 300
    assert value["columns"] == {"id": "string", "input_ids": "list<int32>", "length": "int32", "label": "int64"}


def test_text_says_it_to_a_person_on_one_screen(natural) -> None:
    text = summary_text(replace(natural, warnings=("one document is larger than a shard",)))
    assert "3,003 found = 3,000 written + 3 set aside" in text
    assert re.search(r"2  not valid JSON \(invalid_json\)\n +1  half a surrogate pair", text)
    assert re.search(r"^train +2,700 +[\d,]+ +12 +1\.\d{4}$", text, re.MULTILINE)
    assert re.search(r"^warning +one document is larger than a shard$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 120
    assert len(text.splitlines()) < 40


def test_a_data_set_without_rows_can_be_looked_at(make_manifest, make_split) -> None:
    manifest = make_manifest(make_split("train", [], 1), set_aside={"empty_text": 4})
    assert "4 found = 0 written + 4 set aside" in summary_text(manifest)
    assert summary_json(manifest)["lengths"] == {}


def test_every_reason_has_plain_words() -> None:
    assert {str(reason) for reason in Reason} == set(IN_WORDS)
    assert in_words("a_code_of_tomorrow") == "a code of tomorrow"


def test_text_counts_what_was_cut(natural) -> None:
    cut = replace(natural, ledger=replace(natural.ledger, tokens_cut=1234, documents_cut=5))
    assert re.search(r"^cut off +1,234 tokens of 5 documents$", summary_text(cut), re.MULTILINE)
