"""How much the cache holds, and what goes when it is too much.

The folder is the truth: the sizes of all files in it, those under way and those that are only still mapped included. A file
gets its full size before it is written, so that what others are about to write is counted too. Since a count of 10,000 files
takes 20 ms, the sum is kept in a small file; whoever adds, adds to the sum first, and whoever removes, subtracts
after, both under its lock. So after a crash the sum may be too large, never too small; at the limit the folder is counted anew.
Files get other names under that lock too: a count that read the old name and then found no such file would miss it.

A file that is mapped is locked, and stays: removing its name would free nothing. Such files count until they are closed.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardprep.errors import Full
from shardprep.reader import held

ENTRY, PART, DEAD = "rows", "part", "dead"
_OURS = re.compile(rf"([0-9a-f]{{64}})\.({ENTRY}|{PART}|[0-9a-f]{{16}}\.{DEAD})")
_SUM = struct.Struct("=Q")
_CRC = struct.Struct("=I")


class NoRoom(Full):
    """The cache is at its limit, and all in it is in use: rows can still be read by range."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One file of ours: digest of its shard, kind ("rows", "part", "dead"), size in bytes, time of its last use in ns."""

    path: str
    digest: str
    kind: str
    size: int
    used_ns: int


Order = Callable[[Sequence[Kept]], Sequence[Kept]]


class Room:
    """The space of one cache folder. `order` puts entries into the order in which they may go, first to last."""

    def __init__(self, folder: str, limit_bytes: int | None, order: Order) -> None:
        self._folder, self._limit, self._order = folder, limit_bytes, order
        self._sum_path = os.path.join(folder, "usage")

    def take(self, size: int, then: Callable[[], None], cancelled: Callable[[], bool] = lambda: False) -> None:
        """Count `size` more bytes, and do `then`, which makes a file larger by them; others are removed for it.

        Raises NoRoom, with nothing done, where the limit does not allow it.
        """
        with held.alone(self._sum_path, cancelled) as file:
            total = _read_sum(file)
            if total is None or (self._limit is not None and total + size > self._limit):
                total = sum(kept.size for kept in self.files())
            if self._limit is not None and total + size > self._limit:
                total -= self._free(total + size - self._limit)
            _write_sum(file, total)
            if self._limit is not None and total + size > self._limit:
                raise NoRoom(
                    f"the cache {self._folder} is limited to {self._limit:,} bytes; {total:,} bytes in it are in use, and "
                    f"{size:,} more are needed. Raise the limit (cache_limit_bytes), or give this job a folder of its own.",
                    uri=self._folder,
                )
            _write_sum(file, total + size)
            try:
                then()
            except BaseException:
                _write_sum(file, total)
                raise

    def give_back(self, size: int) -> None:
        """Count `size` fewer bytes: a file was removed, or made smaller, by them."""
        with held.alone(self._sum_path) as file:
            total = _read_sum(file)
            if total is not None:
                _write_sum(file, max(0, total - size))

    def rename(self, path: str, to: str) -> None:
        """Give a file another name, while nobody counts. Raises OSError as os.rename does."""
        with held.alone(self._sum_path):
            os.rename(path, to)

    def free(self, size: int) -> bool:
        """Remove entries of this size in all, since the disk is full; return whether anything went."""
        with held.alone(self._sum_path) as file:
            freed = self._free(size)
            total = _read_sum(file)
            if total is not None:
                _write_sum(file, max(0, total - freed))
        return freed > 0

    def sweep(self) -> None:
        """Remove what killed processes left behind."""
        for kept in self.files():
            if kept.kind != ENTRY and _remove(kept.path):
                self.give_back(kept.size)

    def files(self) -> list[Kept]:
        """Return all files of ours; others in the folder are neither counted nor touched."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                match = _OURS.fullmatch(entry.name)
                if match is not None:
                    with suppress(FileNotFoundError):
                        stat = entry.stat(follow_symlinks=False)
                        kind = match[2].rpartition(".")[2]
                        found.append(Kept(entry.path, match[1], kind, stat.st_size, stat.st_atime_ns))
        return found

    def _free(self, size: int) -> int:
        files = self.files()
        leftovers = [kept for kept in files if kept.kind != ENTRY]
        freed = 0
        for kept in [*leftovers, *self._order([kept for kept in files if kept.kind == ENTRY])]:
            if freed >= size:
                break
            if _remove(kept.path):
                freed += kept.size
        return freed


def _remove(path: str) -> bool:
    """Remove a file that nobody has open with a lock."""
    try:
        file = held.claim(path, make=False)
    except PermissionError:  # another user's
        return False
    if file is None:
        return False
    try:
        os.unlink(path)
    finally:
        held.close(file)
    return True


def _read_sum(file: int) -> int | None:
    data = os.pread(file, _SUM.size + _CRC.size, 0)
    if len(data) != _SUM.size + _CRC.size or _CRC.unpack_from(data, _SUM.size)[0] != zlib.crc32(data[: _SUM.size]):
        return None
    return int(_SUM.unpack_from(data)[0])


def _write_sum(file: int, total: int) -> None:
    data = _SUM.pack(total)
    os.pwrite(file, data + _CRC.pack(zlib.crc32(data)), 0)
