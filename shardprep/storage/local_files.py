"""Names and writes of local files, for LocalStore: keys of odd names, temporary files, rename and link."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from shardprep.errors import Full
from shardprep.storage.locks import lock
from shardprep.storage.store import PutResult

NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
PIECE_BYTES = 1 << 20
NAME_BYTES_MAX = 180  # of 255: room for the temporary name's own parts
TEMPORARY = re.compile(r"\..*\.\d+\.[0-9a-f]{16}\.(tmp|lock)", re.DOTALL)

_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_LOOKS_ESCAPED = re.compile(r"\\(?=x[0-9a-f]{2})")


class NoLinks(Exception):
    """The file system refuses hard links."""


def key_of_name(name: str) -> str:
    """Return how a file's name is written in a key: valid UTF-8, and leading back by `name_of_key`."""
    if name.isascii() and "\\" not in name:
        return name
    name = _LOOKS_ESCAPED.sub(r"\\x5c", name)
    return re.sub("[\udc80-\udcff]", lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", name)


def key_of_path(path: str) -> str:
    r"""Return the key for a path that a person wrote down: as it is, but a backslash that would read like an escape is one.

    A name that holds bytes which are no UTF-8 cannot be written down as it is: where nothing has the literal name, `\xNN`
    means the byte.
    """
    if not _LOOKS_ESCAPED.search(path):
        return path
    if os.path.lexists(path):
        return _LOOKS_ESCAPED.sub(r"\\x5c", path)
    folder, slash, name = path.rpartition("/")
    return key_of_path(folder) + slash + name


def name_of_key(key: str) -> str:
    """Return the file's name, or path, that a key stands for."""
    raw = _ESCAPE.sub(lambda match: chr(0xDC00 + int(match[1], 16)), key)
    # Bytes below 0x80 have no surrogate: they are what the escape says.
    return re.sub("[\udc00-\udc7f]", lambda match: chr(ord(match[0]) - 0xDC00), raw)


def hidden(path: str, mark: str, ending: str) -> str:
    """Return the path of a temporary or lock file beside a path; it matches TEMPORARY."""
    folder, name = os.path.split(path)
    short = os.fsdecode(os.fsencode(name)[:NAME_BYTES_MAX])
    return os.path.join(folder, f".{short}.{mark}.{ending}")


def write_and_publish(
    temporary: str,
    path: str,
    pieces: Iterable[bytes | memoryview],
    publish: Callable[[str, str], None],
    *,
    durable: bool,
) -> PutResult:
    """Write a temporary file under its lock, and give it its name by `publish` (rename or link)."""
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):  # no locks here: `sweep` then goes by age
            lock(file)
        result = fill(file, pieces, durable=durable)
        publish(temporary, path)
        return result
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)  # gone already where it was renamed
        os.close(file)


def pieces_of(path: str) -> Iterator[bytes]:
    """Yield a file's bytes, a mebibyte at a time."""
    with open(path, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def written(file: int, data: bytes | memoryview) -> int:
    """Write all of data to an open file; return the number of bytes."""
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        done += os.write(file, view[done : done + (1 << 30)])
    return done


def no_space(place: str, why: str) -> Full:
    """Return the error for what found no room on its disk."""
    return Full(
        f"no space left for {place} ({why}). Make room, or raise the quota or file size limit, and run the same command again: "
        "it continues.",
        uri=place,
    )


def fill(file: int, pieces: Iterable[bytes | memoryview], *, durable: bool = True) -> PutResult:
    """Write all pieces to an open file, and finish it."""
    for piece in pieces:
        written(file, piece)
    return finish(file, durable=durable)


def finish(file: int, *, durable: bool = True) -> PutResult:
    """Give a written file a time of its own; durable: synced to the disk."""
    # The kernel's own time stamps step by some milliseconds: two writes in one step would look alike.
    now_ns = time.time_ns()
    os.utime(file, ns=(now_ns, now_ns))
    if durable:
        os.fsync(file)
    found = os.fstat(file)
    return PutResult(found.st_size, str(found.st_mtime_ns))


def link_new(temporary: str, path: str) -> None:
    """Give a file a second name that must be new. Raises FileExistsError, and NoLinks where links are refused."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        # Over NFS a link may be made though its answer was lost: then the temporary file has a second name.
        if os.stat(temporary).st_nlink == 2 and os.path.samefile(temporary, path):
            return
        raise
    except OSError as error:
        if error.errno in NO_LINKS:
            raise NoLinks from error
        raise
