"""What must hold of every data set: R1 to R5 of the cases, as functions that every end-to-end test calls.

They read a data set with pyarrow and the standard library only, never with shardprep's own code.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

END = 256  # the end token of the byte tokenizers


@dataclass(frozen=True)
class Dataset:
    """A published data set on a local disk."""

    root: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.root / "manifest.json").read_bytes())
        return value

    @property
    def ledger(self) -> dict[str, Any]:
        return self.manifest["ledger"]

    @property
    def shards(self) -> list[dict[str, Any]]:
        return [s for g in self.manifest["generations"] for split in g["splits"] for s in split["shards"]]

    @property
    def files(self) -> list[Path]:
        return [self.root / shard["name"] for shard in self.shards]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, shard by shard; input_ids as int32 arrays."""
        return [row for path in self.files for row in _rows(pq.ParquetFile(path).read())]

    @cached_property
    def by_id(self) -> dict[str, dict[str, Any]]:
        """Rows by id; ids must not repeat."""
        out = {row["id"]: row for row in self.rows}
        assert len(out) == len(self.rows), "ids repeat"
        return out

    @property
    def ids(self) -> set[str]:
        return set(self.by_id)

    def tokens(self, identity: str) -> list[int]:
        return self.by_id[identity]["input_ids"].tolist()

    def text(self, identity: str) -> str:
        """Return the text of a document that a byte tokenizer wrote."""
        ids = self.by_id[identity]["input_ids"]
        assert ids[-1] == END
        assert 0 <= ids[:-1].min(initial=0) <= ids[:-1].max(initial=0) <= 255
        return ids[:-1].astype("uint8").tobytes().decode()

    @cached_property
    def rejects(self) -> list[dict[str, Any]]:
        folder = self.root / self.manifest["plan"] / "rejects"
        parts = [path.read_bytes() for path in sorted(folder.glob("part-*.jsonl"))]
        return [json.loads(line) for part in parts for line in part.split(b"\n")[:-1]]

    @property
    def reasons(self) -> dict[str, int]:
        return self.ledger["set_aside"]

    @property
    def places(self) -> list[tuple[str, int | None]]:
        """(object, physical line) of everything set aside."""
        return [(reject["key"], reject["line"]) for reject in self.rejects]


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a shard; tokens as slices of one array, since lists of millions of them take seconds."""
    tokens = table["input_ids"].combine_chunks()
    values, offsets = tokens.values.to_numpy(), tokens.offsets.to_numpy().tolist()
    others = table.drop_columns(["input_ids"]).to_pylist()
    return [{**row, "input_ids": values[offsets[i] : offsets[i + 1]]} for i, row in enumerate(others)]


def assert_ledger_adds_up(dataset: Dataset) -> None:
    """R1: found = written + set aside, by reason; each one set aside has a line; what is written is there, once."""
    ledger = dataset.ledger
    assert ledger["found"] == ledger["written"] + sum(ledger["set_aside"].values())
    assert Counter(reject["reason"] for reject in dataset.rejects) == Counter(ledger["set_aside"])
    assert len(dataset.rows) == ledger["rows"] == sum(shard["rows"] for shard in dataset.shards)
    assert sum(len(row["input_ids"]) for row in dataset.rows) == ledger["tokens"]
    assert all(row["length"] == len(row["input_ids"]) for row in dataset.rows)
    if any(field["name"] == "piece" for field in dataset.manifest["schema"]):
        assert len({row["id"] for row in dataset.rows}) == ledger["written"]
    else:
        assert ledger["rows"] == ledger["written"]


def assert_places(dataset: Dataset, expected: Mapping[str, Iterable[int | None]]) -> None:
    """R2: exactly these places are set aside: object -> physical lines, None for an object as a whole."""
    wanted = sorted((key, -1 if line is None else line) for key, lines in expected.items() for line in lines)
    assert sorted((key, -1 if line is None else line) for key, line in dataset.places) == wanted


def assert_files_as_told(dataset: Dataset) -> None:
    """Every shard has the size, digest, rows and footer that the manifest tells; none is empty; all have one schema."""
    schemas = set()
    for shard, path in zip(dataset.shards, dataset.files, strict=True):
        data = path.read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard["bytes"], shard["sha256"]), shard["name"]
        file = pq.ParquetFile(path)
        assert 0 < file.metadata.num_rows == shard["rows"]
        assert file.metadata.num_row_groups == shard["row_groups"]
        schemas.add(file.schema_arrow.remove_metadata().to_string())
    assert len(schemas) <= 1
    fields = dataset.manifest["schema"]
    if dataset.files:
        assert [field["name"] for field in fields] == pq.read_schema(dataset.files[0]).names


def assert_reads_everywhere(dataset: Dataset) -> None:
    """Any Parquet reader gets the same rows: pyarrow, DuckDB, Polars."""
    expected = sorted((row["id"], row["length"], int(row["input_ids"].sum())) for row in dataset.rows)
    paths = [str(path) for path in dataset.files]
    query = "select id, length, list_sum(input_ids) from read_parquet($paths)"
    with duckdb.connect() as connection:
        found = connection.execute(query, {"paths": paths}).fetchall()
    assert sorted((i, length, int(total)) for i, length, total in found) == expected
    frame = polars.read_parquet(paths, hive_partitioning=False)
    columns = frame.select("id", "length", polars.col("input_ids").list.sum()).rows()
    assert sorted(columns) == expected


def assert_sound(root: Path) -> Dataset:
    """Return the data set at a place after everything above was held to it, its leftovers included."""
    dataset = Dataset(root)
    assert_ledger_adds_up(dataset)
    assert_files_as_told(dataset)
    if dataset.files:
        assert_reads_everywhere(dataset)
    folder = root / dataset.manifest["plan"]
    shards = {path for path in folder.rglob("*.parquet")}
    assert shards == set(dataset.files), "a shard that the manifest does not name"
    assert {path.name for path in root.iterdir()} <= {"manifest.json", dataset.manifest["plan"]}
    assert not (folder / "_staging").exists()
    return dataset


def assert_not_published(root: Path) -> None:
    """R3: nothing that looks complete; every shard under its final name is a whole Parquet file all the same."""
    assert not (root / "manifest.json").exists()
    for path in root.rglob("*.parquet"):
        pq.ParquetFile(path).read()


def assert_for_a_person(stderr: str) -> None:
    """R5: no traceback, and some words."""
    assert stderr.strip()
    assert "Traceback" not in stderr
    assert 'File "' not in stderr


def content(root: Path) -> dict[str, str]:
    """Return sha256 by name of everything that a data set is: all files but build.json."""
    names = (path for path in sorted(root.rglob("*")) if path.is_file() and path.name != "build.json")
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in names}


def assert_same_bytes(one: Path, other: Path) -> None:
    """P2: two runs wrote the same files with the same bytes, the manifest included."""
    assert content(one) == content(other)


def row_groups(path: Path) -> list[pa.Table]:
    """Return the row groups of a shard."""
    file = pq.ParquetFile(path)
    return [file.read_row_group(i) for i in range(file.num_row_groups)]
