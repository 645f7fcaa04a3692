"""The folder of the cache: where it is unless it is given, and that it is on a disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from shardprep.errors import ConfigError, Denied, Full, StoreError
from shardprep.storage.local import NO_PERMISSION
from shardprep.storage.local_files import NO_SPACE

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
MOUNTS = "/proc/self/mountinfo"  # Linux; elsewhere there are no such file systems to look out for


def default_folder(environment: Mapping[str, str] = os.environ) -> str:
    """Return where shards are kept unless a folder is given: on disk, one folder a user, shared by all jobs.

    $XDG_CACHE_HOME/shardprep, else ~/.cache/shardprep; on macOS ~/Library/Caches/shardprep.
    """
    given = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # the XDG rules: a relative path is to be ignored
        return os.path.join(given, "shardprep")
    caches = os.path.join("Library", "Caches") if sys.platform == "darwin" else ".cache"
    return os.path.join(os.path.expanduser("~"), caches, "shardprep")


def made(folder: str, mounts: str = MOUNTS) -> str:
    """Make the folder of a cache as needed, and return it. Raises ConfigError if it is in memory, StoreError."""
    folder = os.path.abspath(folder)
    above = folder
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    try:
        kind = _file_system(os.stat(above).st_dev, mounts)
        if kind not in IN_MEMORY:
            os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise fault(error, folder) from error
    if kind in IN_MEMORY:
        raise ConfigError(
            f"the cache folder {folder} is in memory ({kind}): shards would take the memory that "
            "training needs. Give a folder on a disk (cache_dir, or SHARDPREP_CACHE_DIR)."
        )
    return folder


def fault(error: OSError, folder: str) -> StoreError:
    """Return the StoreError for a failed write to the cache."""
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in NO_SPACE:
        return Full(
            f"no space left for shards in the cache folder {folder} ({why}). Make room, raise the quota or file size "
            "limit, or give a folder on a larger disk (cache_dir, or SHARDPREP_CACHE_DIR).",
            uri=folder,
        )
    kind = Denied if error.errno in NO_PERMISSION else StoreError
    return kind(
        f"cannot keep shards in the cache folder {folder}: {why}. Look at the folder, or give another one (cache_dir, "
        "or SHARDPREP_CACHE_DIR).",
        uri=folder,
    )


def _file_system(device: int, mounts: str) -> str:
    """Return the type of the file system with this number, "" where it is not told."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(mounts, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                # number, parent, major:minor, root, mount point, options, ... - type, source, options
                fields, _, rest = line.partition(" - ")
                if fields.split(" ", 3)[2:3] == [wanted]:
                    return rest.split(" ", 1)[0]
    except OSError:
        return ""
    return ""
