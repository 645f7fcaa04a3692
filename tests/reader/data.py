"""Small data sets for the reader's tests, made by a real build: one document is one number, which tells its length."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import shardprep

VOCABULARY = 100_000


class NumberTokens:
    """A tokenizer for texts like "17 5": token 17, five times; so each row shows which document it is."""

    fingerprint = "11" * 32
    vocab_size = VOCABULARY
    pad_id = 0

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        rows = [np.full(int(text.split()[1]), int(text.split()[0]) + 1, np.int32) for text in texts]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return np.concatenate([np.zeros(0, np.int32), *rows]), offsets


def lengths_of(rows: int, longest: int = 300) -> list[int]:
    """Return lengths that vary, a few of them long."""
    return [int(x) for x in np.clip(np.random.default_rng(rows).lognormal(3.5, 0.8, rows), 1, longest)]


def build(folder: Path, lengths: Sequence[int], **settings: object) -> str:
    """Build a data set with ids "0", "1" ..., labels 0 to 9 and the note "n0", "n1" ...; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "documents.jsonl"
    source.write_text(
        "".join(
            json.dumps({"id": i, "label": i % 10, "note": f"n{i}", "text": f"{i} {length}"}) + "\n"
            for i, length in enumerate(lengths)
        )
    )
    output = folder / "shards"
    given = {"shards": 4, "columns": ("label:int64", "note:string"), "id_field": "id", "no_eos": True, **settings}
    shardprep.build(source, output, tokenizer=NumberTokens(), scheduler="serial", progress=False, **given)
    return str(output)
