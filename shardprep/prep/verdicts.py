"""Verdicts on fast tokenizer backends, kept between runs in the user's cache folder.

A cache may be lost, damaged or forbidden at any time: then the probe runs again, which takes seconds.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import orjson

from shardprep.formats.engines import versions
from shardprep.formats.probe import Verdict, verdict, verdict_key
from shardprep.formats.tokenizer import TokenizerSpec

__all__ = ["cache_folder", "known_verdict"]


def known_verdict(data: bytes, spec: TokenizerSpec, folder: Path | None = None) -> Verdict:
    """Return the verdict on the tokenizer.json in `data`: the kept one for these versions, or a new one, then kept."""
    place = (cache_folder() if folder is None else folder) / f"verdict-{verdict_key(spec, versions())}.json"
    kept = _read(place)
    if kept is not None:
        return kept
    found = verdict(data, spec)
    if found.backend:  # where there is no fast backend there is nothing to save the next run
        _write(place, found)
    return found


def cache_folder() -> Path:
    """Return the folder for verdicts: shardprep in $XDG_CACHE_HOME, or in ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # the specification says that a relative path counts as not set
    return (Path(home) if Path(home).is_absolute() else Path("~/.cache").expanduser()) / "shardprep"


def _read(place: Path) -> Verdict | None:
    try:
        return Verdict.from_json(orjson.loads(place.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _write(place: Path, found: Verdict) -> None:
    """Keep a verdict, whole or not at all."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".verdict-")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(orjson.dumps(found.to_json()))
        Path(temporary).replace(place)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
