"""Largest shard over smallest, in tokens, for 8 and 16 shards. Bar: at most 1.001.

Workload W: 40,000 documents with log-normal lengths, mean 900, sigma 0.8, between 16 and 8,192 tokens (35.6 million).
Texts are words of a small WordLevel vocabulary, one token each, so that the lengths are exactly those of W.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.bench import WORK, bench_of, fresh, parser, record, table
from benchmarks.runs import run

ROWS, FILES, VOCABULARY = 40_000, 16, 512


def lengths_of_w(rows: int) -> np.ndarray:
    """Return the lengths of workload W, int64 (rows,)."""
    rng = np.random.default_rng(7)
    return np.clip(rng.lognormal(np.log(900.0) - 0.8**2 / 2, 0.8, rows), 16, 8192).astype(np.int64)


def write_workload(folder: Path, rows: int) -> Path:
    """Write W as JSON Lines, and its tokenizer; return the tokenizer's path."""
    (folder / "lines").mkdir(parents=True, exist_ok=True)
    words = np.array([f"w{i}" for i in range(VOCABULARY)])
    vocabulary = {str(word): i for i, word in enumerate(words)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {**vocabulary, "[UNK]": VOCABULARY}, "unk_token": "[UNK]"},
    }
    (folder / "words.json").write_bytes(orjson.dumps(tokenizer))
    rng = np.random.default_rng(8)
    lengths = lengths_of_w(rows)
    for file in range(FILES):
        lines = [
            orjson.dumps({"id": f"doc-{i:08d}", "text": " ".join(words[rng.integers(0, VOCABULARY, lengths[i])])})
            for i in range(file, rows, FILES)
        ]
        (folder / f"lines/{file:02d}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return folder / "words.json"


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--rows", type=int, default=ROWS)
    options = flags.parse_args(arguments)
    folder = WORK / f"w-{options.rows}"
    tokenizer = write_workload(folder, options.rows)
    bench = bench_of(options)
    rows = []
    for shards in (8, 16):
        output = fresh(f"out/balance-{shards}")
        command = bench.build(folder / "lines", output, "--id-field", "id", "--no-eos", "--shards", str(shards))
        command[command.index("--tokenizer") + 1] = str(tokenizer)
        done = run([*command, "--tokenizer-backend", "reference"]).check()
        files = sorted(output.rglob("*.parquet"))
        counted = [pq.read_table(file, columns=["length"])["length"] for file in files]
        tokens = [pc.sum(column).as_py() for column in counted]
        record("balance", {"shards": shards, "tokens": tokens}, done)
        documents = [len(column) for column in counted]
        whole = sum(tokens) == int(lengths_of_w(options.rows).sum())
        ratio = f"**{max(tokens) / min(tokens):.5f}**"
        rows.append(
            (
                len(files),
                f"{sum(tokens):,}" if whole else f"{sum(tokens):,}: WRONG",
                ratio,
                max(documents) - min(documents),
            )
        )
    heads = ("shards", "tokens", "largest over smallest, in tokens", "difference in rows")
    table(f"Shard balance, workload W, {options.rows} rows (bar: at most 1.001)", heads, rows)
