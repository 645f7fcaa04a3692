"""Workload W of the reader's benchmarks, in memory, as a shardprep data set, and in the formats of the other readers.

    python -m benchmarks.read_workload FORMAT FOLDER [--rows 40000]

FORMAT is shardprep, recordio, mmap, parquet, litdata, mds, wds or arrayrec.

40,000 rows, 35,553,938 tokens: lengths log-normal, mean 889, median 646, p99 4,074, at most 8,192; tokens Zipf-like over
128,000; an int64 label and a string id a row. The same seed makes the same rows. Rows beyond 40,000 repeat the tokens
under other ids. It runs in the other readers' environments too, so shardprep is imported only to write its own format.
"""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

ROWS, SHARDS, VOCABULARY = 40_000, 16, 128_000
SOURCE_FILES = 16


@dataclass(frozen=True, eq=False)
class Rows:
    """Tokens int32 (tokens,), offsets int64 (rows + 1,), labels int64 (rows,), names "doc-00000000" ..."""

    ids: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def tokens(self, i: int) -> np.ndarray:
        i %= ROWS
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def row(self, i: int) -> dict[str, object]:
        return {"ids": self.tokens(i), "label": int(self.labels[i % ROWS]), "id": name(i)}


def name(i: int) -> str:
    return f"doc-{i:08d}"


def lengths() -> np.ndarray:
    """Return the lengths of W, int64 (40000,)."""
    return _lengths(np.random.default_rng(7))


def _lengths(rng: np.random.Generator) -> np.ndarray:
    return np.clip(rng.lognormal(np.log(900.0) - 0.8**2 / 2, 0.8, ROWS), 16, 8192).astype(np.int64)


@lru_cache(maxsize=1)
def workload() -> Rows:
    """Return W; about a second."""
    rng = np.random.default_rng(7)
    lens = _lengths(rng)
    ids = np.exp(
        rng.random(int(lens.sum()), dtype=np.float32) * np.log(VOCABULARY)
    )  # log-uniform ranks: Zipf, exponent 1
    offsets = np.zeros(ROWS + 1, np.int64)
    np.cumsum(lens, out=offsets[1:])
    return Rows(np.minimum(ids.astype(np.int32), VOCABULARY - 1), offsets, rng.integers(0, 10, ROWS))


class RowNumbers:
    """A tokenizer for texts that are numbers of rows: their tokens are the rows' of W."""

    fingerprint = "77" * 32
    vocab_size = VOCABULARY
    pad_id = 0

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        rows = workload()
        parts = [rows.tokens(int(text)) for text in texts]
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return np.concatenate([np.zeros(0, np.int32), *parts]), offsets


COLUMNS_OF_W = {"id_field": "id", "columns": ("label:int64",), "no_eos": True, "shards": SHARDS}


@contextmanager
def documents_of_w(folder: Path, rows: int) -> Iterator[Path]:
    """Give a folder with the documents of W, in order, as 16 JSON Lines files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    labels = workload().labels
    for file in range(SOURCE_FILES):
        part = range(rows * file // SOURCE_FILES, rows * (file + 1) // SOURCE_FILES)
        text = "".join(json.dumps({"id": name(i), "label": int(labels[i % ROWS]), "text": str(i)}) + "\n" for i in part)
        (folder / f"{file:02d}.jsonl").write_text(text)
    yield folder
    shutil.rmtree(folder)


def shardprep(folder: Path, rows: int) -> None:
    """Build the data set with the library: 16 shards."""
    import shardprep as library

    with documents_of_w(folder.with_name(folder.name + ".lines"), rows) as lines:
        library.build(lines, folder, tokenizer=RowNumbers(), scheduler="serial", progress=False, **COLUMNS_OF_W)


def mmap(folder: Path, rows: int) -> None:  # noqa: ARG001
    """One file of tokens and one of offsets, as Megatron has them."""
    folder.mkdir(parents=True)
    w = workload()
    w.ids.tofile(folder / "tokens.bin")
    w.offsets.tofile(folder / "offsets.bin")
    w.labels.tofile(folder / "labels.bin")


def parquet(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    w = workload()
    for shard in range(SHARDS):
        a, b = rows * shard // SHARDS, rows * (shard + 1) // SHARDS
        offsets = (w.offsets[a : b + 1] - w.offsets[a]).astype(np.int32)
        lists = pa.ListArray.from_arrays(offsets, w.ids[w.offsets[a] : w.offsets[b]])
        table = pa.table({"ids": lists, "label": w.labels[a:b], "id": [name(i) for i in range(a, b)]})
        pq.write_table(table, folder / f"s-{shard:05d}.parquet", row_group_size=500)


def litdata(folder: Path, rows: int) -> None:
    from litdata import optimize

    optimize(
        workload().row, list(range(rows)), output_dir=str(folder), chunk_bytes="64MB", num_workers=2, start_method="fork",
        verbose=False,
    )  # fmt: skip


def mds(folder: Path, rows: int) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"ids": "ndarray:int32", "label": "int", "id": "str"}) as writer:
        for i in range(rows):
            writer.write(workload().row(i))


def wds(folder: Path, rows: int) -> None:
    import webdataset

    folder.mkdir(parents=True)
    with webdataset.ShardWriter(str(folder / "s-%05d.tar"), maxcount=rows // SHARDS, verbose=0) as writer:
        for i in range(rows):
            row = workload().row(i)
            writer.write({"__key__": row["id"], "ids.npy": row["ids"], "label.cls": row["label"]})


def arrayrec(folder: Path, rows: int) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        writer = ArrayRecordWriter(str(folder / f"s-{shard:05d}.array_record"), "group_size:1")
        for i in range(rows * shard // SHARDS, rows * (shard + 1) // SHARDS):
            row = workload().row(i)
            writer.write(pickle.dumps((row["ids"].tobytes(), row["label"], row["id"])))
        writer.close()


def recordio(folder: Path, rows: int) -> None:
    """Build the same data set as RecordIO shards."""
    import shardprep as library

    with documents_of_w(folder.with_name(folder.name + ".lines"), rows) as lines:
        given = {**COLUMNS_OF_W, "format": "recordio"}
        library.build(lines, folder, tokenizer=RowNumbers(), scheduler="serial", progress=False, **given)


WRITERS = {w.__name__: w for w in (shardprep, recordio, mmap, parquet, litdata, mds, wds, arrayrec)}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("format", choices=WRITERS)
    flags.add_argument("folder", type=Path)
    flags.add_argument("--rows", type=int, default=ROWS)
    options = flags.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    if options.rows > ROWS and options.format not in ("shardprep", "recordio"):
        sys.exit(f"{options.format} is written for at most {ROWS} rows")
    WRITERS[options.format](options.folder, options.rows)


if __name__ == "__main__":
    main()
