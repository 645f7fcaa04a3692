"""Where the rows of a shard lie in its bytes, and how a part of them is decoded: one layout a file format.

A layout cuts the whole file into spans, one for each group of rows, in order and without gaps: who reads all spans and
the tail has read the file once, and can hash it while it arrives.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardprep.core.block import TokenBlock
from shardprep.core.content import ShardInfo
from shardprep.errors import ConfigError, ManifestError

ReadRange = Callable[[int, int], bytes]
ReadBeside = Callable[[str, int], bytes]  # (name, size in bytes) of another file of the data set


class ShardLayout(Protocol):
    """The groups of rows of one shard.

    spans       bytes of the file, start and stop (exclusive), that hold each group
    row_starts  int64 (groups + 1,): the first row of each group
    tail        the bytes behind the last span
    """

    spans: tuple[tuple[int, int], ...]
    row_starts: NDArray[np.int64]
    tail: bytes

    def decode(self, group: int, data: bytes) -> TokenBlock:
        """Return the rows in the bytes of one span. Raises ManifestError if they are damaged."""
        ...


def load_decoder(name: str) -> None:
    """Import what decodes a shard of this name: once, before several threads come to it at once."""
    for ending, module in _DECODERS.items():
        if name.endswith(ending):
            importlib.import_module(module)


_DECODERS = {".parquet": "shardprep.formats.parquet", ".rec": "shardprep.formats.recordio"}


def read_layout(info: ShardInfo, read: ReadRange, read_beside: ReadBeside) -> ShardLayout:
    """Return the layout of a shard; `read` is asked for as little as tells it. Raises ManifestError if it is damaged."""
    if info.name.endswith(".parquet"):
        return ParquetLayout(info, read(info.bytes - info.footer_bytes, info.bytes))
    if info.name.endswith(".rec"):
        from shardprep.formats.recordio_spans import SPANS, beside

        return RecordLayout(info, read_beside(beside(info.name, SPANS), info.footer_bytes))
    raise ConfigError(
        f"shard {info.name} is of a format that this version does not read; it reads {' and '.join(_DECODERS)}"
    )


class RecordLayout:
    """Spans of RecordIO records, as the file beside the shard tells: it is held against its digest in the manifest."""

    tail = b""

    def __init__(self, info: ShardInfo, spans: bytes) -> None:
        from shardprep.formats.recordio_spans import Spans

        self._spans = Spans.parse(spans, info)
        self.row_starts = self._spans.row_starts
        self.spans = tuple(pairwise(self._spans.byte_starts.tolist()))

    def decode(self, group: int, data: bytes) -> TokenBlock:
        """Return the rows of one span, its check sum compared; a message about damage names the byte in the shard."""
        from shardprep.formats.recordio import decode_span

        try:
            return decode_span(self._spans, group, data)
        except ManifestError:
            raise
        except Exception as error:  # as below
            raise ManifestError(
                f"span {group} cannot be decoded ({type(error).__name__}: {error})", span=group
            ) from error


class ParquetLayout:
    """Row groups, as the footer tells. The footer is held against its digest in the manifest."""

    def __init__(self, info: ShardInfo, footer: bytes) -> None:
        from shardprep.formats.parquet import read_footer, row_group_range

        digest = hashlib.sha256(footer).hexdigest()
        if digest != info.footer_sha256:
            raise ManifestError(
                f"has a footer with another sha256 digest than the manifest says ({digest[:12]}..., not "
                f"{info.footer_sha256[:12]}...): it was replaced or damaged"
            )
        self.tail = footer
        self._metadata = read_footer(footer)
        groups = range(self._metadata.num_row_groups)
        starts = [row_group_range(self._metadata, group)[0] for group in groups]
        # Not only the pages: what lies before the first and between two groups is hashed too.
        edges = [0, *starts[1:], info.bytes - info.footer_bytes] if starts else [0]
        self.spans = tuple(pairwise(edges))
        rows = [self._metadata.row_group(group).num_rows for group in groups]
        self.row_starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)]).astype(np.int64)
        if self.row_starts[-1] != info.rows or any(stop <= start for start, stop in self.spans):
            raise ManifestError(f"has {self.row_starts[-1]:,} rows, the manifest says {info.rows:,}")

    def decode(self, group: int, data: bytes) -> TokenBlock:
        """Return the rows of one row group, page check sums compared."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from shardprep.formats.parquet import decode_row_group

        try:
            part = pa.PythonFile(_Part(data, self.spans[group][0]), mode="r")
            file = pq.ParquetFile(part, metadata=self._metadata, page_checksum_verification=True)
            return decode_row_group(file, group)
        except ManifestError:
            raise
        except Exception as error:  # a StopIteration, too: it must not end somebody's loop
            raise ManifestError(
                f"row group {group} cannot be decoded ({type(error).__name__}: {error})", row_group=group
            ) from error


class _Part:
    """A file of which only one part is there, for pyarrow; what it reads is not copied."""

    closed = False

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._start, self._at = memoryview(data), start, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 2:
            offset += self._start + len(self._data)
        elif whence == 1:
            offset += self._at
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> Any:
        first = self._at - self._start
        if first < 0:
            raise ValueError(f"byte {self._at} is not in the part from {self._start} on")
        data = self._data[first : first + size if size >= 0 else None]
        self._at += len(data)
        return data

    def close(self) -> None:
        self.closed = True
