"""Random documents in random containers with random settings: the ledger, the rows, and the bytes, against plain Python."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.errors import SourceError
from shardprep.prep import build as building
from shardprep.prep import job
from tests.prep.builds import assert_whole, build_here, hashes, manifest_of, rejects_of, rows_of, text_of

texts = st.one_of(
    st.sampled_from(["a", "bb", "the same text"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
)
good = st.builds(lambda i, text: {"id": f"i{i}", "text": text}, st.integers(0, 60), texts)
bad = st.sampled_from(
    [
        ({"id": "x"}, "missing_text"),
        ({"id": "x", "text": None}, "null_text"),
        ({"id": "x", "text": 1}, "text_wrong_type"),
        ({"id": "x", "text": ""}, "empty_text"),
        ({"text": "t"}, "missing_id"),
        ({"id": 1.5, "text": "t"}, "id_wrong_type"),
    ]
)
Object = tuple[bytes, list[dict[str, Any]], list[str]]  # the bytes, the good documents in order, reasons of the others


def dumped(value: Any, *, pretty: bool = False) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=2 if pretty else None).encode()


@st.composite
def objects(draw: st.DrawFn) -> Object:
    """One object of any shape."""
    shape = draw(
        st.sampled_from(["one", "one", "pretty", "array", "lines", "lines", "glued", "broken", "empty", "bad"])
    )
    if shape in ("one", "pretty"):
        value = draw(good)
        return dumped(value, pretty=shape == "pretty"), [value], []
    if shape == "bad":
        value, reason = draw(bad)
        return dumped(value), [], [reason]
    if shape == "broken":
        return b'{"id": "a", "text": ', [], ["invalid_json"]
    if shape == "empty":
        return b" \n", [], ["empty_object"]
    values = draw(st.lists(good, min_size=1, max_size=6))
    if shape == "array":
        return dumped(values, pretty=draw(st.booleans())), values, []
    if shape == "glued":
        data = b"".join(dumped(value) for value in values)
        return (data, values, []) if len(values) == 1 else (data, [], ["several_values"])
    lines = [dumped(value) for value in values]
    reasons = []
    for value, reason in draw(st.lists(bad, max_size=3)):
        lines.insert(draw(st.integers(0, len(lines))), dumped(value))
        reasons.append(reason)
    if draw(st.booleans()):
        lines.insert(draw(st.integers(0, len(lines))), b"")
    end = draw(st.sampled_from([b"\n", b"\r\n"]))
    data = end.join(lines) + draw(st.sampled_from([b"", end]))
    return gzip.compress(data, mtime=0) if draw(st.booleans()) else data, values, reasons


choices = st.fixed_dictionaries(
    {
        "format": st.sampled_from(["parquet", "recordio"]),
        "shards": st.sampled_from([None, 1, 3]),
        "shards_multiple_of": st.sampled_from([1, 2]),
        "split": st.sampled_from(["train=1", "train=0.5,validation=0.5"]),
        "dedup": st.sampled_from(["none", "exact"]),
        "on_duplicate_id": st.sampled_from(["keep", "set-aside"]),
        "buckets": st.sampled_from([1, 4, 64]),
        "pad_multiple": st.sampled_from([1, 8]),
        "row_group_size": st.sampled_from(["1kb", "4MB"]),
        "seed": st.integers(0, 3),
        "overflow": st.sampled_from([None, "truncate", "split", "reject"]),
        "tokenizer_backend": st.sampled_from(["reference", "fast"]),
    }
).map(lambda chosen: {**chosen, "max_length": None if chosen["overflow"] is None else 10})


class AnyOrder:
    """An engine that runs tasks in any order, and ships calls and results as a cluster would."""

    workers = 3

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def run(self, function: Callable[[Any], Any], count: int, task: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
        for index in self._rng.sample(range(count), count):
            yield index, self.alone(function, task(index))

    def alone(self, function: Callable[[Any], Any], argument: Any) -> Any:
        if self._rng.random() < 0.3:
            job._kept.clear()  # another process
        return cloudpickle.loads(cloudpickle.dumps(function(cloudpickle.loads(cloudpickle.dumps(argument)))))

    def close(self) -> None:
        pass


def expected(drawn: list[Object], chosen: dict[str, Any]) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Return (id, text) of what is kept, and what is set aside by reason: objects in the order of their keys."""
    reasons = Counter(reason for _, _, many in drawn for reason in many)
    kept = [(value["id"], value["text"]) for _, values, _ in drawn for value in values]
    if chosen["overflow"] == "reject":
        short = [pair for pair in kept if len(pair[1].encode()) + 1 <= 10]
        reasons["too_long"] += len(kept) - len(short)
        kept = short
    for place, reason, asked in (
        (1, "duplicate_text", chosen["dedup"] == "exact"),
        (0, "duplicate_id", chosen["on_duplicate_id"] == "set-aside"),
    ):
        if asked:
            seen: set[str] = set()
            first = [pair for pair in kept if not (pair[place] in seen or seen.add(pair[place]))]  # type: ignore[func-returns-value]
            reasons[reason] += len(kept) - len(first)
            kept = first
    return kept, +reasons


def whole_rows(output: Path, overflow: str | None) -> list[tuple[str, str, str]]:
    """Return (id, text, split) of every document; pieces put together again where ids do not repeat."""
    rows = rows_of(output)
    if overflow == "split":
        return []
    cut = overflow == "truncate"
    return sorted(
        (r["id"], bytes(r["input_ids"][:-1]).decode(errors="ignore") if cut else text_of(r), r["split"]) for r in rows
    )


@settings(max_examples=25)
@given(drawn=st.lists(objects(), min_size=1, max_size=12), chosen=choices, seed=st.integers(0, 5))
def test_any_build(
    drawn: list[Object], chosen: dict[str, Any], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "in").mkdir()
    for number, (data, _, _) in enumerate(drawn):
        (folder / "in" / f"{number:03d}.json").write_bytes(data)
        os.utime(folder / "in" / f"{number:03d}.json", ns=(number, number))
    kept, reasons = expected(drawn, chosen)
    found = sum(len(values) + len(many) for _, values, many in drawn)
    if found and not kept:
        with pytest.raises(SourceError, match=f"none of the {found} documents"):
            build_here(folder / "in", folder / "one", **chosen)
        return
    manifest = build_here(folder / "in", folder / "one", **chosen)
    assert_whole(folder / "one")
    assert (manifest.ledger.found, manifest.ledger.written) == (found, len(kept))
    assert manifest.ledger.set_aside == dict(reasons)
    assert {reject["key"] for reject in rejects_of(folder / "one")} <= {f"{n:03d}.json" for n in range(len(drawn))}
    if chosen["overflow"] in (None, "reject"):
        assert sorted((name, text) for name, text, _ in whole_rows(folder / "one", None)) == sorted(kept)
    if chosen["overflow"] in (None, "split"):
        assert manifest.ledger.tokens == sum(len(text.encode()) + 1 for _, text in kept)
    if chosen["overflow"] == "truncate":
        assert manifest.ledger.tokens + manifest.ledger.tokens_cut == sum(len(text.encode()) + 1 for _, text in kept)
    counts = [len(split.shards) for split in manifest.generations[0].splits if split.rows]
    assert all(
        count <= split.rows for count, split in zip(counts, manifest.generations[0].splits, strict=False) if split.rows
    )

    with pytest.MonkeyPatch.context() as patch:  # the same plan, in any order, in other processes, the other backend
        patch.setattr(building, "SerialEngine", lambda: AnyOrder(seed))
        other = {"reference": "fast", "fast": "reference"}[chosen["tokenizer_backend"]]
        build_here(folder / "in", folder / "two", **{**chosen, "tokenizer_backend": other})
    assert hashes(folder / "two") == hashes(folder / "one")

    with (
        pytest.MonkeyPatch.context() as patch
    ):  # other tasks, byte ranges of a few bytes among them: other bytes, the same data
        small = partial(building.plan_scan, min_task_bytes=40, max_task_bytes=90, object_overhead_bytes=1)
        patch.setattr(building, "plan_scan", small)
        build_here(folder / "in", folder / "three", **chosen)
    assert_whole(folder / "three")
    one, three = manifest_of(folder / "one"), manifest_of(folder / "three")
    assert three.ledger == one.ledger
    assert three.buckets == one.buckets
    assert [
        (s.name, s.histogram.lengths.tolist(), s.histogram.counts.tolist(), len(s.shards))
        for s in three.generations[0].splits
    ] == [
        (s.name, s.histogram.lengths.tolist(), s.histogram.counts.tolist(), len(s.shards))
        for s in one.generations[0].splits
    ]
    assert whole_rows(folder / "three", chosen["overflow"]) == whole_rows(folder / "one", chosen["overflow"])
    places = [
        [(r["key"], r["line"], r["offset"], r["reason"]) for r in rejects_of(folder / name)]
        for name in ("one", "three")
    ]
    assert sorted(places[0], key=str) == sorted(places[1], key=str)
