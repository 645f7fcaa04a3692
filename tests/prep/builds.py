"""Builds for the tests of the preparation: documents to build from, ways to build, and what must hold afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from shardprep.api import build_dataset
from shardprep.core.manifest import Manifest, parse
from shardprep.prep.settings import Settings
from shardprep.prep.verify import verify
from tests.formats.records import dmlc_records, records_in

TOKENIZER = Path(__file__).parents[1] / "cases" / "tok" / "byte.json"  # an id is a byte's value; 256 ends a document
END = 256
WORDS = "the of and to in a is that it was for on are as with they at be this from émigré 日本 🙂".split()


def documents(count: int, *, seed: int = 0, longest: int = 60) -> list[dict[str, Any]]:
    """Return documents of up to `longest` words, no text twice, with ids that say nothing of their place, and a label."""
    rng = random.Random(seed)
    return [
        {
            "id": f"{seed}-{rng.getrandbits(32):08x}-{i}",
            "text": " ".join([*rng.choices(WORDS, k=rng.randint(0, longest)), f"{seed}.{i}"]),
            "label": i % 5,
        }
        for i in range(count)
    ]


def write_files(folder: Path, values: Iterable[Any], *, prefix: str = "d") -> Path:
    """Write each value as one JSON object in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, value in enumerate(values):
        (folder / f"{prefix}{number:05d}.json").write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return folder


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    """Write values as JSON lines; a str is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def build_here(source: Path | str, output: Path | str, **settings: Any) -> Manifest:
    """Build in this process with the serial engine, unless the settings say otherwise."""
    tokenizer = settings.pop("tokenizer", TOKENIZER)
    chosen = {"id_field": "id", "scheduler": "serial", "progress": False} | settings
    return build_dataset(source, output, tokenizer, Settings.of(chosen)).manifest


def command(source: Path | str, output: Path | str, *flags: str) -> list[str]:
    """Return the command line of a build."""
    given = [str(source), str(output), "--tokenizer", str(TOKENIZER), "--id-field", "id"]
    return [sys.executable, "-m", "shardprep", "build", *given, *flags]


def run(
    arguments: list[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return exit code and output."""
    return subprocess.run(
        arguments, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def hashes(output: Path) -> dict[str, str]:
    """Return name -> sha256 of every file of a data set but those that may differ: build.json, and a pickled tokenizer."""
    may_differ = ("build.json", "tokenizer.pickle")  # cloudpickle gives classes of a script a random name
    files = sorted(path for path in output.rglob("*") if path.is_file() and path.name not in may_differ)
    return {path.relative_to(output).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def manifest_of(output: Path) -> Manifest:
    """Return the manifest of a data set."""
    return parse((output / "manifest.json").read_bytes())


def rows_of(output: Path) -> list[dict[str, Any]]:
    """Return every row of a data set as pyarrow or protobuf reads it, with the name of its split, in the order of the shards."""
    rows: list[dict[str, Any]] = []
    manifest = manifest_of(output)
    for shard in manifest.shards:
        if shard.name.endswith(".rec"):
            read = records_in((output / shard.name).read_bytes(), manifest.schema)
        else:
            read = pq.read_table(output / shard.name).to_pylist()
        rows += [{**row, "split": shard.split} for row in read]
    return rows


def rejects_of(output: Path) -> list[dict[str, Any]]:
    """Return what was set aside, as the data set tells it."""
    parts = sorted((output / manifest_of(output).plan / "rejects").glob("*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_bytes().split(b"\n")[:-1]]


def text_of(row: Mapping[str, Any]) -> str:
    """Return the text of a row of the byte tokenizer."""
    assert row["input_ids"][-1] == END
    return bytes(row["input_ids"][:-1]).decode()


def assert_whole(output: Path) -> Manifest:
    """Fail unless a data set verifies and its ledger adds up (R1), line by line of its rejects."""
    outcome = verify(str(output), progress=False)
    assert outcome.ok, outcome.problems
    assert not outcome.warnings
    manifest = manifest_of(output)
    ledger = manifest.ledger
    assert ledger.found == ledger.written + sum(ledger.set_aside.values())
    assert dict(Counter(reject["reason"] for reject in rejects_of(output))) == dict(ledger.set_aside)
    rows = rows_of(output)
    assert len(rows) == ledger.rows
    assert sum(len(row["input_ids"]) for row in rows) == ledger.tokens
    assert not (output / manifest.plan / "_staging").exists()
    return manifest


def assert_holds(output: Path, wanted: Iterable[Mapping[str, Any]]) -> None:
    """Fail unless the data set holds exactly these documents, each once and with its own text."""
    found = sorted((row["id"], text_of(row)) for row in rows_of(output))
    assert found == sorted((document["id"], document["text"]) for document in wanted)


def assert_unpublished(output: Path) -> None:
    """Fail if there is a data set, or a file under its final name that is not whole."""
    assert not (output / "manifest.json").exists()
    for path in output.rglob("*.parquet"):
        pq.ParquetFile(path).close()  # a footer: the file is whole
    for path in output.rglob("*.rec"):
        records = list(dmlc_records(path.read_bytes()))
        index = output / path.relative_to(output).parts[0] / "index" / path.parent.name / path.name
        assert len(index.with_suffix(".idx").read_text().splitlines()) == len(records)
        assert index.with_suffix(".json").exists()
