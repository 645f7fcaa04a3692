r"""LocalStore: a folder as a store. The hot path of small files: open, fstat, read, close, and nothing else.

Names. A key is the path below the root, with "/". A name that is not valid UTF-8 is listed all the same: its odd bytes
are written as `\xNN`, and a backslash that would read like one as `\x5c`, so that every key leads back to its file.

Writing. A file is written under a temporary name in its own folder (".NAME.PID.RANDOM.tmp"), synced and renamed:
readers see the old file or the new one. After a kill -9 the temporary file stays. It is never listed, and `sweep`
removes it: a living writer holds a lock on its temporary file, so a free lock tells that the writer is dead.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NoReturn

from shardprep.errors import Changed, Denied, Exists, NotFound, StoreError, Unavailable
from shardprep.storage.listing import ListingBuilder
from shardprep.storage.local_files import (
    NO_SPACE,
    TEMPORARY,
    NoLinks,
    fill,
    finish,
    hidden,
    key_of_name,
    link_new,
    name_of_key,
    no_space,
    pieces_of,
    write_and_publish,
)
from shardprep.storage.locks import has_living_writer, locked
from shardprep.storage.store import Listing, PutResult

PAGE_KEYS = 10_000
NO_ENTRY = frozenset({errno.ENOENT, errno.ENOTDIR})
NO_PERMISSION = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
NO_DEVICE = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENODEV})
PUT_TRIES = 5  # the folder, or the temporary file, was swept away while we wrote


class LocalStore:
    """Files under one folder; `uri` is the folder's path. An ETag is the modification time in nanoseconds."""

    requests_in_flight = 1

    def __init__(self, root: str) -> None:
        self.uri = root
        self._base = root if root.endswith("/") else root + "/"

    def list(self, prefix: str = "", *, on_progress: Callable[[int], None] | None = None) -> Iterator[Listing]:
        """Yield pages of all files whose key starts with prefix; nothing where there is no such folder.

        Links to files are listed as files, a link to nothing with size 0 and no ETag. Links to folders are followed
        after all real folders, in order of their keys, and each folder once, so that loops end.
        """
        page = ListingBuilder(on_progress)
        for key, size_bytes, etag in self._walk(prefix):
            page.add(key, size_bytes, etag)
            if len(page) >= PAGE_KEYS:
                yield page.take()
        if len(page):
            yield page.take()

    def get(self, key: str, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        """Return a whole file; raise Changed if its size or modification time is not the one given."""
        try:
            file = os.open(self._base + key if "\\" not in key else self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.fstat(file)
                size = found.st_size
                if (size_bytes is not None and size != size_bytes) or (etag and str(found.st_mtime_ns) != etag):
                    self._raise_changed(key, found, etag, size_bytes)
                data = os.read(file, size + 1)  # one byte more: a file that grows is noticed
                if len(data) != size:
                    data = self._read_on(file, key, data, size, etag)
                return data
            finally:
                os.close(file)
        except OSError as error:
            self._raise(error, key, "read")

    def get_range(self, key: str, start: int, stop: int, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        """Return bytes start to stop (exclusive; cut at the file's end); raise Changed as `get` does."""
        try:
            file = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.fstat(file)
                if (size_bytes is not None and found.st_size != size_bytes) or (
                    etag and str(found.st_mtime_ns) != etag
                ):
                    self._raise_changed(key, found, etag, size_bytes)
                parts: list[bytes] = []
                while start < stop and (data := os.pread(file, stop - start, start)):
                    parts.append(data)
                    start += len(data)
                return parts[0] if len(parts) == 1 else b"".join(parts)
            finally:
                os.close(file)
        except OSError as error:
            self._raise(error, key, "read")

    def head(self, key: str) -> tuple[int, str]:
        """Return size in bytes and modification time in nanoseconds of one file."""
        try:
            found = os.stat(self._path(key))
        except OSError as error:
            self._raise(error, key, "read")
        return found.st_size, str(found.st_mtime_ns)

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> PutResult:
        """Write a whole file by rename; folders are made as needed. Raises Full where there is no space."""
        return self._put(key, lambda: [data], os.replace, durable=durable)

    def put_file(self, key: str, path: str) -> PutResult:
        """Write a file by moving another one there, or where it lies on another disk, by copying it."""
        target = self._path(key)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                result = finish(file)
                os.replace(path, target)
            finally:
                os.close(file)
        except OSError as error:
            if error.errno != errno.EXDEV:
                self._raise(error, key, "write")
            return self._put(key, lambda: pieces_of(path), os.replace)
        return result

    def check_publishable(self, *, replacing: bool) -> None:
        """Do nothing: exclusive creation and conditional replacement are there."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        """Write a file only where there is none, by a hard link: exactly one of many racing calls wins.

        Where the file system refuses links the name itself is created exclusively: still one winner, but a crash
        while writing may leave a part of the file.
        """
        try:
            result = self._put(key, lambda: [data], link_new)
        except NoLinks:
            result = self._create_exclusively(key, data)
        self._sync_folder(key)
        return result

    def put_if_match(self, key: str, data: bytes, etag: str) -> PutResult:
        """Replace the file that has this modification time, under a lock file beside it; else raise Exists."""
        path = self._path(key)
        try:
            with locked(hidden(path, "0." + "0" * 16, "lock")):
                found = self.head(key)[1]
                if found != etag:
                    raise Exists(
                        f"{path} was replaced by another writer meanwhile. Look at it, then run again.",
                        uri=path,
                        etag=found,
                    )
                result = self.put(key, data)
        except OSError as error:
            self._raise(error, key, "write")
        self._sync_folder(key)
        return result

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files, and folders below the root that become empty by it."""
        folders = set()
        for key in keys:
            path = self._path(key)
            try:
                os.unlink(path)
            except OSError as error:
                if error.errno not in NO_ENTRY:
                    self._raise(error, key, "delete")
            folders.add(os.path.dirname(path))
        for folder in sorted(folders, key=len, reverse=True):
            self._remove_empty(folder)

    def counts(self) -> dict[str, int]:
        """Return nothing: calls to a disk are not counted."""
        return {}

    def close(self) -> None:
        """Do nothing: no connection is held."""

    def local_path(self, key: str) -> str:
        """Return the path of a file."""
        return self._path(key)

    def sweep(self, prefix: str = "") -> int:
        """Remove temporary files that writers left behind when they died; return how many.

        A temporary file whose lock is held belongs to a living writer and stays. Where the file system has no locks,
        only what is older than an hour is removed.
        """
        removed = 0
        folder = os.path.dirname(self._base + prefix)
        for where, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(where, name)
                if TEMPORARY.fullmatch(name) and not has_living_writer(path):
                    with suppress(FileNotFoundError):
                        os.unlink(path)
                        removed += 1
        return removed

    def _path(self, key: str) -> str:
        if "\\" not in key:
            return self._base + key
        return self._base + name_of_key(key)

    def _walk(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        base = prefix[: prefix.rfind("/") + 1]
        seen: set[tuple[int, int]] = set()
        links: list[str] = []
        folders = [base]
        while folders or links:
            if not folders:
                links.sort(reverse=True)  # real folders first: which name a file gets must not hang on disk order
                folders.append(links.pop())
            folder = folders.pop()
            try:
                where = self._path(folder)
                found = os.stat(where)
                if (found.st_dev, found.st_ino) in seen:
                    continue
                seen.add((found.st_dev, found.st_ino))
                with os.scandir(where) as entries:
                    for entry in entries:
                        key = folder + key_of_name(entry.name)
                        if entry.is_dir(follow_symlinks=False):
                            if _may_match(key + "/", prefix):
                                folders.append(key + "/")
                        elif entry.is_symlink() and os.path.isdir(entry.path):
                            if _may_match(key + "/", prefix):
                                links.append(key + "/")
                        elif key.startswith(prefix) and (listed := _file(entry)):
                            yield key, *listed
            except OSError as error:
                if error.errno not in NO_ENTRY:  # a folder that has gone has nothing to list
                    self._raise(error, folder, "list")

    def _put(
        self,
        key: str,
        pieces: Callable[[], Iterable[bytes | memoryview]],
        publish: Callable[[str, str], None],
        *,
        durable: bool = True,
    ) -> PutResult:
        path = self._path(key)
        for attempt in range(PUT_TRIES):
            temporary = hidden(path, f"{os.getpid()}.{secrets.token_hex(8)}", "tmp")
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                return write_and_publish(temporary, path, pieces(), publish, durable=durable)
            except FileNotFoundError as error:
                if attempt == PUT_TRIES - 1:
                    self._raise(error, key, "write")
            except FileExistsError:
                raise Exists(f"{path} is already there.", uri=path) from None
            except OSError as error:
                self._raise(error, key, "write")
        raise AssertionError("the last try returns or raises")

    def _create_exclusively(self, key: str, data: bytes) -> PutResult:
        path = self._path(key)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            raise Exists(f"{path} is already there.", uri=path) from None
        except OSError as error:
            self._raise(error, key, "write")
        try:
            return fill(file, [data])
        except OSError as error:
            os.unlink(path)
            self._raise(error, key, "write")
        finally:
            os.close(file)

    def _sync_folder(self, key: str) -> None:
        # After a power cut a manifest must not be there without the renames made before it.
        folder = os.open(os.path.dirname(self._path(key)), os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # some network file systems cannot sync a folder
                os.fsync(folder)
        finally:
            os.close(folder)

    def _remove_empty(self, folder: str) -> None:
        while len(folder) >= len(self._base):
            try:
                os.rmdir(folder)
            except OSError:  # not empty, or gone already
                return
            folder = os.path.dirname(folder)

    def _read_on(self, file: int, key: str, data: bytes, size: int, etag: str) -> bytes:
        parts, done = [data], len(data)
        while done <= size and (part := os.read(file, size + 1 - done)):  # one read gives at most 2 GiB
            parts.append(part)
            done += len(part)
        if done != size:  # a file that somebody appends to is not read to its end, which may never come
            self._raise_changed(key, os.fstat(file), etag, size)
        return b"".join(parts)

    def _raise_changed(self, key: str, found: os.stat_result, etag: str, size_bytes: int | None) -> NoReturn:
        path = self._path(key)
        raise Changed(
            f"{path} changed after it was listed: it has {found.st_size} bytes and the modification time "
            f"{found.st_mtime_ns} ns, listed were {size_bytes} bytes and {etag or 'no time'}. Run again: it is listed anew.",
            uri=path,
        )

    def _raise(self, error: OSError, key: str, doing: str) -> NoReturn:
        path = self._path(key)
        why = os.strerror(error.errno) if error.errno else str(error)
        if error.errno in NO_SPACE:
            raise no_space(path, why) from error
        if error.errno in NO_ENTRY:
            raise NotFound(f"{path} is not there ({why}).", uri=path) from error
        if error.errno in NO_PERMISSION:
            raise Denied(
                f"cannot {doing} {path}: {why}. Check owner and mode of the file and its folders.", uri=path
            ) from error
        kind = Unavailable if error.errno in NO_DEVICE else StoreError
        raise kind(f"cannot {doing} {path}: {why}.", uri=path, attempts=1) from error


def _may_match(folder: str, prefix: str) -> bool:
    return folder.startswith(prefix) or prefix.startswith(folder)


def _file(entry: os.DirEntry[str]) -> tuple[int, str] | None:
    if entry.name[0] == "." and TEMPORARY.fullmatch(entry.name):
        return None
    try:
        found = entry.stat()
    except OSError as error:
        if error.errno not in (*NO_ENTRY, errno.ELOOP):
            raise
        return (0, "") if entry.is_symlink() else None  # a link to nothing, or to itself; a file that has gone
    if found.st_mode & 0o170000 != 0o100000:  # pipes, sockets and devices hold no documents
        return None
    return found.st_size, str(found.st_mtime_ns)
