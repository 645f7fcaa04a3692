"""What is known only when all scans are in: repeats, leaks, types, limits on what is set aside, the ledger."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from shardprep.cli import main
from shardprep.errors import SourceError, TooManyBad, TypeConflict
from tests.prep.builds import (
    assert_holds,
    assert_unpublished,
    assert_whole,
    build_here,
    documents,
    manifest_of,
    rejects_of,
    rows_of,
    text_of,
    write_files,
    write_lines,
)

SPLIT = "train=0.6,validation=0.4"


def test_dedup_keeps_the_first_by_key_and_offset(tmp_path: Path) -> None:
    unique = documents(300, seed=1)
    again = [{**unique[n], "id": f"again-{n}"} for n in range(0, 300, 3)]
    write_files(tmp_path / "in", unique, prefix="b")
    write_lines(tmp_path / "in" / "c.jsonl", again)
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": "first", "text": unique[1]["text"]}])
    build_here(tmp_path / "in", tmp_path / "out", dedup="exact")
    manifest = assert_whole(tmp_path / "out")
    kept = [*unique[:1], {"id": "first", "text": unique[1]["text"]}, *unique[2:]]
    assert_holds(tmp_path / "out", kept)
    assert manifest.ledger.set_aside == {"duplicate_text": len(again) + 1}
    rejects = {(reject["key"], reject["line"]): reject["detail"] for reject in rejects_of(tmp_path / "out")}
    assert rejects["b00001.json", 1] == "same text as first"
    for line in range(1, len(again) + 1):
        assert rejects["c.jsonl", line] == f"same text as {unique[3 * (line - 1)]['id']}"


def test_dedup_over_byte_ranges_names_the_physical_line(tmp_path: Path) -> None:
    values = documents(8_000, seed=2)
    places = sorted(random.Random(3).sample(range(1, 8_000), 40))
    lines = [{**value} for value in values]
    for n in places:
        lines[n] = {"id": f"copy-{n}", "text": values[0]["text"]}
    write_lines(tmp_path / "in.jsonl", lines)
    build_here(tmp_path / "in.jsonl", tmp_path / "out", dedup="exact")
    assert_whole(tmp_path / "out")
    assert sorted(reject["line"] for reject in rejects_of(tmp_path / "out")) == [n + 1 for n in places]
    assert_holds(tmp_path / "out", [value for n, value in enumerate(values) if n not in set(places)])


@pytest.mark.parametrize("shards", [1, 4])
def test_dedup_with_overflow_split_drops_all_pieces(shards: int, tmp_path: Path) -> None:
    values = documents(400, seed=4, longest=80)
    again = [{**value, "id": f"{value['id']}-again"} for value in values[::2]]
    write_files(tmp_path / "in", [*values, *again])
    settings: dict[str, Any] = {
        "dedup": "exact",
        "max_length": 32,
        "overflow": "split",
        "shards": shards,
        "split": SPLIT,
    }
    build_here(tmp_path / "in", tmp_path / "out", **settings)
    manifest = assert_whole(tmp_path / "out")
    assert manifest.ledger.written == len(values)
    pieces: dict[str, list[tuple[int, list[int]]]] = {}
    for row in rows_of(tmp_path / "out"):
        assert len(row["input_ids"]) <= 32
        pieces.setdefault(row["id"], []).append((row["piece"], row["input_ids"]))
    assert pieces.keys() == {value["id"] for value in values}
    for value in values:
        parts = sorted(pieces[value["id"]])
        assert [number for number, _ in parts] == list(range(len(parts)))
        whole = [token for _, tokens in parts for token in tokens]
        assert text_of({"input_ids": whole}) == value["text"]


@pytest.mark.parametrize("what", ["keep", "set-aside", "fail"])
def test_repeated_ids(what: str, tmp_path: Path) -> None:
    values = documents(50, seed=5)
    other = [{"id": values[7]["id"], "text": "another text"}, {"id": values[9]["id"], "text": "a third"}]
    write_files(tmp_path / "in", values, prefix="a")
    write_files(tmp_path / "in", other, prefix="b")
    if what == "fail":
        with pytest.raises(SourceError, match=re.escape(values[7]["id"])) as caught:
            build_here(tmp_path / "in", tmp_path / "out", on_duplicate_id=what)
        assert "--on-duplicate-id" in caught.value.message
        assert_unpublished(tmp_path / "out")
        return
    build_here(tmp_path / "in", tmp_path / "out", on_duplicate_id=what)
    manifest = assert_whole(tmp_path / "out")
    assert manifest.duplicates["ids"] == 2
    assert sorted(manifest.duplicates["ids_examples"]) == sorted([values[7]["id"], values[9]["id"]])
    if what == "keep":
        assert_holds(tmp_path / "out", [*values, *other])
        assert any(values[7]["id"] in warning for warning in manifest.warnings)
    else:
        assert_holds(tmp_path / "out", values)
        assert manifest.ledger.set_aside == {"duplicate_id": 2}
        assert {reject["key"] for reject in rejects_of(tmp_path / "out")} == {"b00000.json", "b00001.json"}


def test_a_repeat_of_a_dropped_text_is_no_repeated_id(tmp_path: Path) -> None:
    """A copy that is set aside for its text is not counted again for its id; and the id's next owner is then the first."""
    values = [
        {"id": "x", "text": "one"},
        {"id": "y", "text": "one"},  # set aside: same text
        {"id": "y", "text": "two"},  # so this is the only y
        {"id": "x", "text": "three"},  # and this one repeats an id
    ]
    write_files(tmp_path / "in", values)
    build_here(tmp_path / "in", tmp_path / "out", dedup="exact", on_duplicate_id="set-aside")
    manifest = assert_whole(tmp_path / "out")
    assert manifest.ledger.set_aside == {"duplicate_id": 1, "duplicate_text": 1}
    assert_holds(tmp_path / "out", [values[0], values[2]])


def test_leaks_between_splits_are_reported(tmp_path: Path) -> None:
    values = [{"id": f"d{n}", "text": f"text {n % 40}"} for n in range(200)]
    write_files(tmp_path / "in", values)
    build_here(tmp_path / "in", tmp_path / "out", split=SPLIT)
    manifest = assert_whole(tmp_path / "out")
    splits: dict[str, list[str]] = {}
    for row in rows_of(tmp_path / "out"):
        splits.setdefault(text_of(row), []).append(row["split"])
    leaked = sum(len(found) for found in splits.values() if len(set(found)) > 1)
    assert leaked > 0
    assert manifest.duplicates["texts_in_two_splits"] == leaked
    assert 1 <= len(manifest.duplicates["texts_in_two_splits_examples"]) <= 5
    by_id = {row["id"]: row for row in rows_of(tmp_path / "out")}
    for one, other in manifest.duplicates["texts_in_two_splits_examples"]:
        assert by_id[one]["split"] != by_id[other]["split"]
        assert text_of(by_id[one]) == text_of(by_id[other])
    assert any("--dedup exact" in warning for warning in manifest.warnings)

    build_here(tmp_path / "in", tmp_path / "clean", split=SPLIT, dedup="exact")
    assert len(rows_of(tmp_path / "clean")) == 40
    assert not manifest_of(tmp_path / "clean").warnings


def test_groups_never_straddle_and_growth_moves_nobody(tmp_path: Path) -> None:
    values = [{**value, "patient": f"p{n % 37}"} for n, value in enumerate(documents(400, seed=6))]
    write_files(tmp_path / "in", values[:200], prefix="z")
    settings: dict[str, Any] = {"split": "train=0.7,validation=0.2,test=0.1", "split_by": "patient"}
    build_here(tmp_path / "in", tmp_path / "small", **settings)
    write_files(tmp_path / "in", values[200:], prefix="a")
    build_here(tmp_path / "in", tmp_path / "large", seed=9, **settings)
    patient = {value["id"]: value["patient"] for value in values}
    before = {row["id"]: row["split"] for row in rows_of(tmp_path / "small")}
    after = {row["id"]: row["split"] for row in rows_of(tmp_path / "large")}
    assert {name: after[name] for name in before} == before
    groups: dict[str, set[str]] = {}
    for name, split in after.items():
        groups.setdefault(patient[name], set()).add(split)
    assert len(groups) == 37
    assert all(len(found) == 1 for found in groups.values())


def test_an_undeclared_column_gets_one_type_over_all_tasks(tmp_path: Path) -> None:
    """Integers in most tasks and floats in one: float64 in every shard, and exact."""
    values = [{**value, "score": n} for n, value in enumerate(documents(600, seed=7))]
    values[411]["score"] = 0.5
    values[412]["score"] = None
    values[413] = {k: v for k, v in values[413].items() if k != "score"}
    write_files(tmp_path / "in", values)
    build_here(tmp_path / "in", tmp_path / "out", columns=("score", "label"), shards=4)
    assert_whole(tmp_path / "out")
    files = list((tmp_path / "out").rglob("*.parquet"))
    schemas = {str(pq.read_schema(file).remove_metadata()) for file in files}
    assert len(files) == 4
    assert len(schemas) == 1
    assert pq.read_schema(files[0]).field("score").type == "double"
    assert pq.read_schema(files[0]).field("label").type == "int64"
    scores = {row["id"]: row["score"] for row in rows_of(tmp_path / "out")}
    assert scores == {value["id"]: value.get("score") for value in values}


def test_a_column_that_is_null_everywhere(tmp_path: Path) -> None:
    write_files(tmp_path / "in", [{**value, "label": None} for value in documents(10)])
    build_here(tmp_path / "in", tmp_path / "out", columns=("label",))
    assert {row["label"] for row in rows_of(tmp_path / "out")} == {None}


def test_two_types_stop_the_job_before_anything_is_written(tmp_path: Path) -> None:
    values = documents(600, seed=8)
    values[5]["label"] = "five"
    write_files(tmp_path / "in", values)
    with pytest.raises(TypeConflict, match=r"d0000[0-9]\.json|d00\d+\.json") as caught:
        build_here(tmp_path / "in", tmp_path / "out", columns=("label",))
    assert "d00005.json" in caught.value.message
    assert "string" in caught.value.message
    assert "int64" in caught.value.message
    assert not list((tmp_path / "out").rglob("*.parquet"))


BAD_LINE = 3_000


def lines_with_one_bad(folder: Path) -> Path:
    """Lines that become several byte ranges, one of them bad."""
    values: list[Any] = documents(9_000, seed=9)
    values[BAD_LINE - 1] = '{"id": "x", "text": '
    return write_lines(folder / "many.jsonl", values)


def test_on_bad_fail_in_a_byte_range_names_the_physical_line(tmp_path: Path) -> None:
    source = lines_with_one_bad(tmp_path)
    with pytest.raises(SourceError, match=rf"many\.jsonl, line {BAD_LINE}: invalid_json"):
        build_here(source, tmp_path / "out", on_bad="fail")
    assert_unpublished(tmp_path / "out")


@pytest.mark.parametrize(
    ("limit", "stops"), [("0", True), ("0%", True), ("0.01%", True), ("0.1%", False), ("1", False)]
)
def test_max_bad_is_judged_after_the_scan(limit: str, stops: bool, tmp_path: Path) -> None:
    source = lines_with_one_bad(tmp_path)
    if not stops:
        build_here(source, tmp_path / "out", max_bad=limit)
        assert_whole(tmp_path / "out")
        return
    with pytest.raises(TooManyBad) as caught:
        build_here(source, tmp_path / "out", max_bad=limit)
    assert caught.value.exit_code == 1
    assert f"many.jsonl, line {BAD_LINE}: invalid_json" in caught.value.message
    assert "1 of 9,000" in caught.value.message
    assert limit in caught.value.message
    assert_unpublished(tmp_path / "out")
    build_here(source, tmp_path / "out")  # the same plan: what was staged is used
    assert_whole(tmp_path / "out")


@pytest.mark.parametrize("what", [{"dedup": "exact"}, {"on_duplicate_id": "set-aside"}])
def test_repeats_are_no_bad_documents(what: dict[str, Any], tmp_path: Path) -> None:
    """They are set aside because that was asked for: neither --max-bad nor --on-bad fail counts them, then or later."""
    write_files(tmp_path / "in", [{"id": "same", "text": "same"} for n in range(10)])
    write_lines(tmp_path / "in" / "bad.jsonl", ["{broken"])
    with pytest.raises(TooManyBad, match=r"1 of 11 documents .*: 1 invalid_json"):
        build_here(tmp_path / "in", tmp_path / "out", max_bad="0", **what)
    assert_unpublished(tmp_path / "out")
    for _ in range(2):  # the second time it is there already, and judged again
        build_here(tmp_path / "in", tmp_path / "out", max_bad="1", **what)
        assert sorted(assert_whole(tmp_path / "out").ledger.set_aside.values()) == [1, 9]
    (tmp_path / "in" / "bad.jsonl").unlink()
    for _ in range(2):
        build_here(tmp_path / "in", tmp_path / "good", on_bad="fail", **what)


def test_nothing_but_bad_documents(tmp_path: Path) -> None:
    write_files(tmp_path / "in", [{"id": str(n), "body": "x"} for n in range(10)])
    with pytest.raises(SourceError, match=r"none of the 10 documents.*10 missing_text.*--text-field") as caught:
        build_here(tmp_path / "in", tmp_path / "out")
    assert caught.value.exit_code == 1
    assert_unpublished(tmp_path / "out")


@pytest.mark.parametrize("settings", [{}, {"split": SPLIT, "dedup": "exact", "columns": ("label",), "shards": 3}])
def test_a_source_of_empty_arrays_is_an_empty_data_set(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path / "in", [[], []])
    output = tmp_path / "out"
    build_here(tmp_path / "in", output, **settings)
    manifest = assert_whole(output)
    assert (manifest.ledger.found, manifest.ledger.rows, len(manifest.shards)) == (0, 0, 0)
    assert main(["inspect", str(output)]) == 0
    assert main(["verify", str(output)]) == 0
    assert main(["inspect", str(output), "--json"]) == 0
    capsys.readouterr()
    found = ds.dataset([str(output / shard.name) for shard in manifest.shards], format="parquet")
    assert found.count_rows() == 0
    build_here(tmp_path / "in", output, **settings)


def test_a_split_without_rows(tmp_path: Path) -> None:
    write_files(tmp_path / "in", documents(2, seed=1))
    build_here(tmp_path / "in", tmp_path / "out", split="train=0.98,validation=0.01,test=0.01")
    manifest = assert_whole(tmp_path / "out")
    assert [split.name for split in manifest.generations[0].splits] == ["train", "validation", "test"]
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_ids_without_an_id_field(tmp_path: Path) -> None:
    """A document alone in its object has the key; a line key#offset; an array's element key#index."""
    folder = tmp_path / "in"
    write_files(folder, [{"text": "alone"}, [{"text": "zero"}, {"text": "one"}]])
    write_lines(folder / "lines.jsonl", [{"text": "first"}, {"text": "second"}])
    build_here(folder, tmp_path / "out", id_field=None)
    assert {row["id"]: text_of(row) for row in rows_of(tmp_path / "out")} == {
        "d00000.json": "alone",
        "d00001.json#0": "zero",
        "d00001.json#1": "one",
        "lines.jsonl#0": "first",
        f"lines.jsonl#{len(json.dumps({'text': 'first'})) + 1}": "second",
    }


def test_the_same_documents_in_other_containers_are_the_same_rows(tmp_path: Path) -> None:
    values = documents(60, seed=11)
    write_files(tmp_path / "files", values)
    write_files(tmp_path / "array", [values])
    write_lines(tmp_path / "lines" / "x.jsonl", values)
    shapes = []
    for name in ("files", "array", "lines"):
        build_here(tmp_path / name, tmp_path / f"out-{name}", split=SPLIT)
        assert_holds(tmp_path / f"out-{name}", values)
        shapes.append(sorted((row["id"], row["split"]) for row in rows_of(tmp_path / f"out-{name}")))
        assert manifest_of(tmp_path / f"out-{name}").generations[0].splits[0].histogram.rows
    assert shapes[0] == shapes[1] == shapes[2]


def test_tokens_cut_are_those_of_the_documents_written(tmp_path: Path) -> None:
    """A copy that is set aside has lost nothing to --overflow truncate."""
    values = [{"id": "a", "text": "0123456789"}, {"id": "b", "text": "0123456789"}, {"id": "c", "text": "01234"}]
    write_files(tmp_path / "in", values)
    build_here(tmp_path / "in", tmp_path / "out", dedup="exact", max_length=8, overflow="truncate")
    ledger = assert_whole(tmp_path / "out").ledger
    assert (ledger.written, ledger.tokens, ledger.tokens_cut, ledger.documents_cut) == (2, 8 + 6, 3, 1)
