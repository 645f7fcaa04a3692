"""Rows longer than the limit: cut to it, or split into pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardprep.core.block import offsets_of
from shardprep.errors import ConfigError

Ids = NDArray[np.int32]
Offsets = NDArray[np.int64]


def truncate(ids: Ids, offsets: Offsets, max_length: int, keep_tail: int = 0) -> tuple[Ids, Offsets, NDArray[np.int64]]:
    """Return rows of at most `max_length` tokens: ids int32, offsets int64 (rows + 1,), tokens cut int64 (rows,).

    A row that is too long keeps its last `keep_tail` tokens, which close it (end token, [SEP]), and as many of
    its first ones as still fit. Raises ConfigError where the closing tokens alone do not fit.
    """
    _check_limit(max_length)
    if not 0 <= keep_tail <= max_length:
        raise ConfigError(
            f"--max-length {max_length} has no room for the {keep_tail} tokens that close each document: "
            f"give at least {keep_tail + 1}, or switch them off with --no-template or --no-eos"
        )
    lengths = np.diff(offsets)
    cut = np.maximum(lengths - max_length, 0)
    if not cut.any():
        return ids[offsets[0] : offsets[-1]], offsets - offsets[0], cut
    kept = offsets_of(lengths - cut)
    source = np.arange(kept[-1], dtype=np.int64)
    source += np.repeat(offsets[:-1] - kept[:-1], lengths - cut)
    # the closing tokens of a cut row stand `cut` further on in the old row
    rows = np.flatnonzero(cut)
    tail = kept[rows + 1][:, None] - np.arange(keep_tail, 0, -1)  # (cut rows, keep_tail)
    source[tail] += cut[rows][:, None]
    return ids[source], kept, cut


def split(ids: Ids, offsets: Offsets, max_length: int) -> tuple[Ids, Offsets, NDArray[np.int64], NDArray[np.int64]]:
    """Return pieces of at most `max_length` tokens: ids, offsets int64 (pieces + 1,), parent row and piece number.

    The tokens stay as they are and in their order; only boundaries are added, so that no token is lost. Parent and
    piece are int64 (pieces,); pieces of a row are numbered from 0, all but its last are full. An empty row is one
    empty piece.
    """
    _check_limit(max_length)
    lengths = np.diff(offsets)
    pieces = np.maximum(-(-lengths // max_length), 1)
    parent = np.repeat(np.arange(len(lengths), dtype=np.int64), pieces)
    first = offsets_of(pieces)
    number = np.arange(first[-1], dtype=np.int64) - first[parent]
    new = np.empty(len(parent) + 1, dtype=np.int64)
    new[:-1] = offsets[parent] + number * max_length
    new[-1] = offsets[-1]
    return ids[offsets[0] : offsets[-1]], new - offsets[0], parent, number


def _check_limit(max_length: int) -> None:
    if max_length < 1:
        raise ConfigError(f"--max-length must be at least 1, got {max_length}")
