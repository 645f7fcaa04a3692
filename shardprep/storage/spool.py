"""A file that is written piece by piece on this machine's disk, and then put into a store: what is large is never in memory.

For a local store it is the temporary file of the target itself, in the same folder, so that putting it is a rename. For others
it lies in the folder for temporary files and, on Linux, has no name: nothing is left of a process that was killed.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shardprep.errors import StoreError
from shardprep.storage.local_files import NO_SPACE, hidden, no_space, written
from shardprep.storage.locks import lock
from shardprep.storage.store import Store

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
ON_DISK = "/var/tmp"  # noqa: S108  where the Filesystem Hierarchy Standard keeps what outlives a reboot


class Spool:
    """A file that takes bytes; `path` leads to it. Closed, it takes no more and says nothing.

    `told` is what messages call it.
    """

    def __init__(self, file: int, path: str, told: str) -> None:
        self.path = path
        self._file = file
        self._told = told
        self._is_open = True

    def write(self, data: Any, /) -> int:
        """Append bytes. Raises Full where there is no space, StoreError for other faults of the disk."""
        if self._is_open:  # Arrow writes a footer even after an error, when nobody wants it any more
            try:
                written(self._file, data)
            except OSError as error:
                self.close()
                raise _fault(error, self._told) from error
        return len(data)

    def close(self) -> None:
        """Take no more; the file stays until the end of the block."""
        self._is_open = False


def _fault(error: OSError, told: str) -> StoreError:
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in NO_SPACE:
        return no_space(told, why)
    return StoreError(f"cannot write {told}: {why}.", uri=told)


@contextmanager
def spool(store: Store, key: str) -> Iterator[Spool]:
    """Yield an empty file on disk for what is to be put under a key; it is gone at the end unless it was moved there."""
    target = store.local_path(key)
    path = None
    try:
        if target is not None:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            path = hidden(target, f"{os.getpid()}.{secrets.token_hex(8)}", "tmp")
            file, told = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), target
            with suppress(OSError):  # no locks here: `sweep` then goes by age
                lock(file)
        else:
            folder = scratch_folder()
            file, path = tempfile.mkstemp(prefix="shardprep-", dir=folder)
            told = f"a shard's temporary file in {folder} (TMPDIR says where it lies)"
    except OSError as error:
        raise _fault(error, target or "a shard's temporary file (TMPDIR says where it lies)") from error
    is_nameless = target is None and sys.platform == "linux"
    if is_nameless:
        os.unlink(path)
    made = Spool(file, f"/proc/self/fd/{file}" if is_nameless else path, told)
    try:
        yield made
    finally:
        made.close()
        if not is_nameless:
            with suppress(FileNotFoundError):  # it was moved to where it belongs
                os.unlink(path)
        os.close(file)


def scratch_folder() -> str:
    """Return where temporary files go: what TMPDIR says; else the usual folder, unless that is memory and another is disk."""
    usual = tempfile.gettempdir()
    if os.environ.get("TMPDIR") or not _is_in_memory(usual):
        return usual
    return ON_DISK if os.access(ON_DISK, os.W_OK) and not _is_in_memory(ON_DISK) else usual


def _is_in_memory(folder: str, mounts: str = "/proc/mounts") -> bool:
    """Say whether a folder lies in memory, by the longest mount point above it; no where that cannot be told."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    best, kind = "", ""
    for line in lines:
        point, found = line.split(" ")[1:3]
        if (os.path.realpath(folder) + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
            best, kind = point, found
    return kind in IN_MEMORY
