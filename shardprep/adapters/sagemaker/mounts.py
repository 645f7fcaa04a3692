"""Mounted sources of a job with several hosts: the union of the hosts' folders, read by all (storage/mounted.py).

Each host says what lies in its folder; the head puts that together; each host keeps the whole index on its disk. So it makes
no difference whether the platform gave every object to every host or dealt them out, and an empty folder is a part of none.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shardprep.errors import ConfigError, StoreError
from shardprep.prep.globs import has_magic, literal_folder
from shardprep.storage.mounted import SCHEME, Mount, write_index
from shardprep.storage.mounted_server import FileServer, check_readable, from_bytes, index_folder, with_here
from shardprep.storage.store import local_path_of

NAME = "source"
ASK_S = 120.0
LOOK_ENTRIES = 10_000
Line = dict[str, Any]


@dataclass(frozen=True)
class MountPlan:
    """What of the hosts' folders is the source.

    folder   the folder; below: whether it is relative to the host's ML root, which tests give each host for itself
    prefix   what the keys of all wanted files begin with
    rest     what is left of the source behind the folder: a file's name, or a pattern
    given    the source as the user named it
    """

    folder: str
    below: bool
    prefix: str
    rest: str
    given: str

    @property
    def uri(self) -> str:
        """Return the source as the build gets it."""
        return f"{SCHEME}://{NAME}/{self.rest}"

    def line(self) -> Line:
        """Return what the other hosts need to know."""
        return {"folder": self.folder, "below": self.below, "prefix": self.prefix}

    def shown(self, text: str) -> str:
        """Return a text of the build with the names that the user knows."""
        folder = (
            self.given[: len(self.given) - len(self.rest)]
            if self.rest and self.given.endswith(self.rest)
            else self.given
        )
        return text.replace(f"{SCHEME}://{NAME}", folder.rstrip("/"))


def plan_mount(source: str | None, ml_root: str) -> MountPlan | None:
    """Return the plan for a source that is a local path, None for any other."""
    path = None if source is None else local_path_of(source)
    if source is None or path is None:
        return None
    full = os.path.abspath(path)
    if os.path.isdir(full):
        folder, rest = full, ""
    elif has_magic(full):
        folder = literal_folder(full).rstrip("/") or "/"
        rest = full[len(literal_folder(full)) :] + ("/" if path.endswith("/") else "")
    else:
        folder, rest = os.path.split(full)
    prefix = rest if not has_magic(rest) else rest[: min(rest.find(c) for c in "*?[" if c in rest)]
    root = os.path.abspath(ml_root)
    below = folder == root or folder.startswith(root + "/")
    return MountPlan(os.path.relpath(folder, root) if below else folder, below, prefix, rest, source)


def folder_of(line: Mapping[str, Any], ml_root: str) -> str:
    """Return where the mount's folder is on this host."""
    return os.path.normpath(os.path.join(ml_root, line["folder"])) if line["below"] else str(line["folder"])


class Part:
    """The part of one host of a mount: its index and its file server."""

    def __init__(self, line: Mapping[str, Any], ml_root: str, bind: str) -> None:
        self.folder = folder_of(line, ml_root)
        check_readable(self.folder)
        self.index = index_folder(self.folder, line["prefix"])
        self.server = FileServer(self.folder, self.index, bind)
        self.server.__enter__()

    def close(self) -> None:
        """End the server."""
        self.server.close()

    def keep(self, union: pa.Table, servers: list[str], mounts: str) -> None:
        """Write the index of the whole, as this host sees it, into the folder of indexes."""
        os.makedirs(mounts, exist_ok=True)
        path = os.path.join(mounts, f"{NAME}.arrow")
        write_index(path, with_here(union, self.index), Mount(self.folder, tuple(servers)))


def fetch_table(address: str, what: str) -> pa.Table:
    """Return a table ("index" or "union") of another host's file server. Raises StoreError."""
    url = f"http://{address}/{what}"
    try:
        with urllib.request.urlopen(url, timeout=ASK_S) as answer:
            return from_bytes(answer.read())
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(f"the host at {address} does not tell what lies in its folder: {error}", uri=url) from error


def look(folder: str) -> Line:
    """Return what this host sees on the first level of a folder: enough to tell a shared folder from one of its own."""
    try:
        with os.scandir(folder) as entries:
            seen = sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in entries)
    except OSError as error:
        return {"error": os.strerror(error.errno or 0)}
    return {"entries": seen[:LOOK_ENTRIES]}


def check_same(folder: str, mine: Line, theirs: Mapping[str, Line]) -> None:
    """Raise ConfigError where hosts see other things in a folder that --shared-filesystem says is one and the same."""
    for host, line in theirs.items():
        if line != _as_sent(mine):
            why = line.get("error") or "other files, sizes or times"
            raise ConfigError(
                f"{folder} is not the same folder on all hosts: {host} sees {why}. --shared-filesystem is for NFS and FSx. "
                "Leave it out for an input of the job: its copies on the hosts are put together. An output must be an s3:// URI",
                host=host,
            )


def _as_sent(line: Line) -> Line:
    return {**line, "entries": [list(entry) for entry in line["entries"]]} if "entries" in line else line
