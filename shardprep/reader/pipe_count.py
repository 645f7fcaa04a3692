"""RowCount: holds the rows that came through a pipe against those that the manifest says there are."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardprep.core.content import SplitInfo
from shardprep.core.histogram import LengthHistogram, merged
from shardprep.errors import ManifestError
from shardprep.reader.pipe_channel import PipeChannel
from shardprep.reader.pipe_stream import End
from shardprep.reader.pipe_windows import Window


class RowCount:
    """Counts the rows of one FIFO by their lengths.

    path: of the FIFO, for messages
    """

    def __init__(self, splits: Iterable[SplitInfo], channel: PipeChannel, path: str) -> None:
        self._expected: LengthHistogram = merged([split.histogram for split in splits])
        self._counts = np.zeros(len(self._expected.lengths), dtype=np.int64)
        self._channel, self._path = channel, path
        self.rows = 0

    @property
    def is_complete(self) -> bool:
        """Tell whether all rows of the split have come."""
        return self.rows == self._expected.rows

    def add(self, window: Window) -> None:
        """Count a window. Raises ManifestError if the split has no such rows, or fewer of them."""
        lengths = window.histogram.lengths
        place = np.minimum(np.searchsorted(self._expected.lengths, lengths), len(self._expected.lengths) - 1)
        np.add.at(self._counts, place, window.histogram.counts)
        strange = (self._expected.lengths[place] != lengths) | (self._counts[place] > self._expected.counts[place])
        self.rows += window.rows
        if strange.any():
            raise ManifestError(
                f'{self._path}: the stream of channel "{self._channel.name}" is not of this split: up to row {self.rows:,} it '
                f"has more rows of {int(lengths[np.argmax(strange)]):,} tokens than the manifest counts "
                f"({self._expected.rows:,} rows in all). Is its S3Uri the folder of this split and plan alone, with a slash at "
                "the end?",
                channel=self._channel.name,
                rows=self.rows,
            )

    def finish(self, end: End) -> None:
        """Raise ManifestError if the stream ended before all rows came, unless this host gets a part of them."""
        missing = self._expected.rows - self.rows
        if missing and not self._channel.is_sharded:
            raise ManifestError(
                f'{self._path}: the stream of channel "{self._channel.name}" ended after {end.size_bytes:,} bytes and '
                f"{self.rows:,} rows, and {missing:,} of {self._expected.rows:,} rows are missing: the writer closed it early, "
                "or the channel has only some of the shards. If that is meant (ShardedByS3Key), give "
                'distribution="ShardedByS3Key"',
                channel=self._channel.name,
                byte=end.size_bytes,
                missing=missing,
            )
