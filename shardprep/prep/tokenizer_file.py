"""Where the tokenizer's bytes come from: a path, a URI, a folder, a name on the hub, or an object of the caller's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from shardprep.errors import ConfigError, NotFound
from shardprep.formats.hub import from_hub
from shardprep.formats.tokenizer import TokenizerSpec, resolve, spec_of
from shardprep.prep.settings import Settings
from shardprep.storage.store import open_store, split_uri

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True)
class RawTokenizer:
    """What the user named, read: a tokenizer.json and the tokenizer_config.json beside it, or an object."""

    data: bytes
    config: bytes | None
    custom: Any

    @property
    def file(self) -> bytes | None:
        """Return the bytes of the tokenizer.json, None for an object."""
        return self.data if self.custom is None else None


@dataclass(frozen=True)
class LoadedTokenizer:
    """The tokenizer as it travels: bytes of a tokenizer.json, or of a pickled object; and what was decided about it."""

    data: bytes
    spec: TokenizerSpec
    custom: bool

    @property
    def key(self) -> str:
        """Return the name under which workers find the bytes in the staging folder."""
        return "tokenizer.pickle" if self.custom else "tokenizer.json"


def read_tokenizer(tokenizer: Any, settings: Settings, options: Mapping[str, str]) -> RawTokenizer:
    """Return what the user named. Raises ConfigError for a name that leads nowhere."""
    if tokenizer is None:
        raise ConfigError("no tokenizer: give --tokenizer FILE_OR_NAME")
    if not isinstance(tokenizer, str | Path):
        return RawTokenizer(cloudpickle.dumps(tokenizer), None, tokenizer)
    data, config = _read(str(tokenizer), settings, options)
    return RawTokenizer(data, config, None)


def decide(raw: RawTokenizer, settings: Settings) -> LoadedTokenizer:
    """Return the tokenizer, decided for these settings. Raises TokenizerError, ConfigError."""
    eos, pad = settings.eos_token, settings.pad_token
    if raw.custom is not None:
        spec = spec_of(raw.custom, eos_token=eos, no_eos=settings.no_eos, pad_token=pad)
        return LoadedTokenizer(raw.data, spec, custom=True)
    spec = resolve(
        raw.data,
        raw.config,
        eos_token=eos,
        no_eos=settings.no_eos,
        no_template=settings.no_template,
        pad_token=pad,
    )
    return LoadedTokenizer(raw.data, spec, custom=False)


def _read(name: str, settings: Settings, options: Mapping[str, str]) -> tuple[bytes, bytes | None]:
    path = Path(name).expanduser()
    if "://" not in name and not path.exists():
        if HUB_NAME.fullmatch(name) and not name.endswith(".json"):
            return from_hub(name)
        raise ConfigError(f"no tokenizer file {name}", tokenizer=name)
    uri = name if "://" in name else str(path)
    if "://" not in name and path.is_dir():
        uri = str(path / "tokenizer.json")
    root, key = split_uri(uri)
    store = open_store(root, options=options, kind=settings.store)
    try:
        data = store.get(key)
    except NotFound as error:
        raise ConfigError(f"no tokenizer file {uri}", tokenizer=name) from error
    beside = key.rpartition("/")[0]
    try:
        config = store.get((beside + "/" if beside else "") + "tokenizer_config.json")
    except NotFound:
        config = None
    return data, config
