"""How many documents and tokens a tool wrote, read from its own format."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq


def written(folder: Path) -> tuple[int, int | None]:
    """Return documents and tokens under a folder; tokens are None where the format does not say."""
    parquet = sorted(folder.rglob("*.parquet"))
    if parquet:
        return _parquet(parquet)
    if (folder / "index.json").exists():  # litdata
        return sum(chunk["chunk_size"] for chunk in json.loads((folder / "index.json").read_text())["chunks"]), None
    indexes = sorted(folder.glob("*.ds.index"))  # datatrove: uint64 ends
    return sum(index.stat().st_size // 8 for index in indexes), None


def _parquet(files: list[Path]) -> tuple[int, int]:
    rows = tokens = 0
    for file in files:
        metadata = pq.ParquetFile(file).metadata
        rows += metadata.num_rows
        for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
            columns = (group.column(i) for i in range(group.num_columns))
            # The count of a list column's values is that of its tokens (no document here is empty).
            tokens += next(c.num_values for c in columns if c.path_in_schema.startswith(("ids.", "input_ids.")))
    return rows, tokens
