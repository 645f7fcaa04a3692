"""Small files that are either there whole or not at all, whenever the process dies or another one looks."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress

from shardprep.errors import Full, StoreError
from shardprep.storage.local_files import NO_LINKS, NO_SPACE, fill, hidden


def write_whole(path: str, data: bytes, *, durable: bool) -> None:
    """Write a file under its name in one go, replacing an older one; durable: it also survives a loss of power.

    Raises Full if the disk or quota is full, else StoreError; both name the file, and an older file is then untouched.
    """
    temporary = hidden(path, f"{os.getpid()}.{secrets.token_hex(8)}", "tmp")
    try:
        try:
            if not _written_nameless(temporary, data, durable=durable):
                _write(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), data, durable)
            os.replace(temporary, path)
            if durable:
                _sync_folder(os.path.dirname(path) or ".")
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)  # gone already where it was renamed
    except OSError as error:
        if error.errno in NO_SPACE:
            raise Full(
                f"{path}: no space left to write it ({error.strerror}); free some space in its folder", uri=path
            ) from error
        raise StoreError(f"{path}: it cannot be written ({error.strerror}); check the folder", uri=path) from error


def _written_nameless(temporary: str, data: bytes, *, durable: bool) -> bool:
    """Write a file that has no name until it is whole, where the system has such files (Linux, most file systems).

    So nothing half can be seen or copied, not even under the temporary name.
    """
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None:
        return False
    try:
        file = os.open(os.path.dirname(temporary) or ".", flag | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return False
        raise
    try:
        fill(file, [data], durable=durable)
        # A folder's descriptor makes Python call linkat, the only way to link what has no name; the path is absolute.
        os.link(f"/proc/self/fd/{file}", temporary, src_dir_fd=file, follow_symlinks=True)
    except OSError as error:
        if error.errno not in NO_LINKS | {errno.ENOENT}:  # ENOENT: no /proc here
            raise
        return False
    finally:
        os.close(file)
    return True


def _write(file: int, data: bytes, durable: bool) -> None:
    try:
        fill(file, [data], durable=durable)
    finally:
        os.close(file)


def _sync_folder(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    except OSError as error:  # some network file systems have no sync of folders
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EROFS):
            raise
    finally:
        os.close(file)
