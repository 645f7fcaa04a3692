"""Entries that are in the cache's folder: opened under a shared lock, compared, and taken out of the way when damaged."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from shardprep.core.block import TokenBlock
from shardprep.errors import ManifestError
from shardprep.reader import held
from shardprep.reader.entry import Damaged, Mapped, pieces, read_head
from shardprep.reader.fetcher import difference, local_path
from shardprep.reader.filling import OTHER_DIGEST
from shardprep.reader.ref import ShardRef
from shardprep.reader.room import DEAD, ENTRY, Room

MARKS_MAX = 20_000
Mark = tuple[int, int, int]  # device, inode and mtime of an entry
_compared: dict[Mark, NDArray[np.bool_]] = {}  # of this process: which pieces of ids it compared, or wrote
_vouched: set[tuple[str, str]] = set()  # of this process: shards on local disks that it looked at; address and digest


class Busy(Exception):
    """Somebody holds the entry alone: for a moment, to publish or to remove it."""


class Finder:
    """Looks into one folder. `on_damage` is told of each damaged entry."""

    def __init__(self, folder: str, room: Room, on_damage: Callable[[], None]) -> None:
        self._folder, self._room, self._on_damage = folder, room, on_damage

    def path(self, ref: ShardRef, ending: str) -> str:
        """Return the path of a shard's file of one kind."""
        return os.path.join(self._folder, f"{ref.info.sha256}.{ending}")

    def find(self, ref: ShardRef, cancelled: Callable[[], bool]) -> Mapped | None:
        """Return the entry or None, after waiting where somebody holds it alone."""
        for pause in held.pauses():
            try:
                return self.open(ref)
            except Busy:
                if cancelled():
                    raise CancelledError from None
                time.sleep(pause)
        raise AssertionError("pauses do not end")

    def open(self, ref: ShardRef) -> Mapped | None:
        """Return the entry, mapped, or None. Raises Busy; ManifestError if a local source has changed; OSError."""
        path = self.path(ref, ENTRY)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if not held.try_lock(file, path, shared=True):
                raise Busy
            found = os.fstat(file)
            if found.st_nlink == 0:
                return None
            try:
                mapped = Mapped(file, read_head(file, ref.info), _compared.get(_mark(found)))
            except Damaged:
                self._condemn(file, path)
                return None
            if len(_compared) > MARKS_MAX:
                _compared.clear()  # costs comparing again
            _compared.setdefault(_mark(found), mapped.compared)
            with suppress(OSError):  # another user's file
                os.utime(file, ns=(time.time_ns(), found.st_mtime_ns))
            _look_at_source(ref, found.st_mtime_ns)
        finally:
            os.close(file)  # the map has a descriptor of its own, of the same open file: the lock stays
        return mapped

    def remove_damaged(self, ref: ShardRef, compared: NDArray[np.bool_]) -> None:
        """Condemn the entry of which this was compared, unless another one has its name by now."""
        path = self.path(ref, ENTRY)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            mark = _mark(os.fstat(file))
            if _compared.get(mark) is compared:
                _compared.pop(mark)
                self._condemn(file, path)
        finally:
            os.close(file)

    def _condemn(self, file: int, path: str) -> None:
        """Take a damaged entry out of the way; whoever maps it keeps it, and it counts until they let go."""
        self._on_damage()
        if held.names(path, file):
            dead = f"{path.removesuffix(ENTRY)}{secrets.token_hex(8)}.{DEAD}"
            with suppress(FileNotFoundError):
                self._room.rename(path, dead)
                if held.try_lock(file, dead):
                    os.unlink(dead)
                    self._room.give_back(os.fstat(file).st_size)


class EntryGroups:
    """Groups of a shard, read from its entry as long as it is there: for first batches that began before it was."""

    def __init__(self, finder: Finder, ref: ShardRef) -> None:
        self._finder, self._ref = finder, ref

    def has(self, _group: int) -> bool:
        """Return whether the entry holds this group: it holds all."""
        return True

    def block(self, _group: int, first: int, stop: int) -> TokenBlock | None:
        """Return rows first to stop (exclusive), over the map; None where the entry is gone, busy or damaged."""
        with suppress(Busy, OSError, ManifestError):
            mapped = self._finder.open(self._ref)
            if mapped is not None and mapped.is_sound(first, stop):
                return mapped.view.block.slice(first, stop)
        return None


def is_written(file: int, ref: ShardRef) -> None:
    """Note that this process wrote the entry itself, from the shard as the manifest describes it."""
    _compared[_mark(os.fstat(file))] = np.ones(pieces(ref.info.tokens), dtype=np.bool_)
    _vouched.add((ref.address, ref.info.sha256))


def _mark(found: os.stat_result) -> Mark:
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _look_at_source(ref: ShardRef, cached_ns: int) -> None:
    """Raise ManifestError if a shard on a local disk is no longer what was cached; once a process.

    One that was touched since then is read whole, for its digest.
    """
    key = (ref.address, ref.info.sha256)
    path = None if key in _vouched else local_path(ref)
    if path is None:
        return
    try:
        with open(path, "rb") as source:
            found = os.fstat(source.fileno())
            is_same = found.st_size == ref.info.bytes and (
                found.st_ctime_ns <= cached_ns or hashlib.file_digest(source, "sha256").hexdigest() == ref.info.sha256
            )
    except OSError as error:
        raise difference(ref, f"cannot be read ({os.strerror(error.errno or 0)})") from error
    if not is_same:
        raise difference(ref, OTHER_DIGEST)
    _vouched.add(key)
