"""Evaluation results, one row of the data a line: written by an evaluation, read by `shardprep compare`.

    {"id": "kjv/Gen-1", "loss": 2.3125, "tokens": 512, "correct": true, "weight": 1}

id       as in the data set; rows that a long document was cut into carry `piece` as well
loss     mean over the row's predicted tokens, in nats; `tokens`: how many those are
correct  true or false (or 1 and 0)
weight   0: a filler row, left out; other weights count in means of metrics without tokens
Any column may be added: other metrics, or groups (--by). A file is JSONL or Parquet, told by its content; a folder holds
parts, one from each rank, named rows-00000-of-00004.jsonl and so on.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

import orjson

from shardprep.errors import ConfigError, StoreError


class RowResults:
    """Collects an evaluation's results batch by batch, and writes them; for one rank, in plain numpy or lists.

    results = RowResults()
    results.add(batch.ids, weight=batch.weight, loss=losses, tokens=counts)   # arrays (rows,)
    results.write(f"eval/rows-{rank:05d}-of-{world_size:05d}.jsonl")          # or .parquet; compare takes the folder
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, ids: Sequence[str], *, weight: Any = None, **columns: Any) -> None:
        """Add rows; each column an array or list of (rows,). Filler rows, those of weight 0, are left out.

        Raises ConfigError if a column has another length, or if the columns are not those of the first call.
        """
        given = {"id": list(ids), **({} if weight is None else {"weight": weight}), **columns}
        plain = {name: _plain(values) for name, values in given.items()}
        for name, values in plain.items():
            if len(values) != len(ids):
                raise ConfigError(f"{name} has {len(values)} values for {len(ids)} rows")
        if self._columns and set(plain) != set(self._columns):
            raise ConfigError(f"columns {sorted(plain)}, but {sorted(self._columns)} in the batches before")
        real = [i for i in range(len(ids)) if weight is None or plain["weight"][i] != 0]
        for name, values in plain.items():
            self._columns.setdefault(name, []).extend(values[i] for i in real)
        self._rows += len(real)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write JSONL, or Parquet if the name ends in .parquet; whole or not at all, its folder made if need be.

        NaN and infinities become null in JSONL: compare says where they are. Raises StoreError.
        """
        from shardprep.reader.whole_file import write_whole

        name = os.fspath(path)
        if name.endswith(".parquet"):
            data = self._parquet()
        else:
            rows = zip(*self._columns.values(), strict=True)
            data = b"".join(orjson.dumps(dict(zip(self._columns, row, strict=True))) + b"\n" for row in rows)
        try:
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        except OSError as error:
            raise StoreError(f"{name}: its folder cannot be made ({error.strerror})", uri=name) from error
        write_whole(name, data, durable=True)

    def _parquet(self) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = io.BytesIO()
        pq.write_table(pa.table(self._columns or {"id": pa.array([], pa.string())}), file)
        return file.getvalue()


def _plain(values: Any) -> list[Any]:
    """Return an array, tensor or list as a list of Python values."""
    if hasattr(values, "detach"):  # a tensor, on whatever device; bfloat16 has no numpy
        values = values.detach().cpu()
    return list(values.tolist()) if hasattr(values, "tolist") else list(values)
