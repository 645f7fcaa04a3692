"""Settings: every choice of a build, checked once, with what was got in the message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from shardprep.errors import ConfigError

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
CHOICES = {
    "format": ("parquet", "recordio"),
    "tokenizer_backend": ("auto", "reference", "fast"),
    "dedup": ("none", "exact"),
    "overflow": ("truncate", "split", "reject"),
    "store": ("auto", "fsspec"),
    "on_bad": ("set-aside", "fail"),
    "on_duplicate_id": ("keep", "set-aside", "fail"),
    "source_format": ("auto", "objects", "inventory", "augmented-manifest"),
}


def _content(default: Any) -> Any:
    """Return a field that changes what is written: it is part of the plan and of the manifest."""
    return field(default=default, metadata={"content": True})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of `shardprep build`; names are the long flags with underscores.

    Sizes are in bytes unless the name says tokens. Raises ConfigError that lists every problem at once.
    """

    text_field: str = _content("text")
    id_field: str | None = _content(None)
    columns: tuple[str, ...] = _content(())
    format: str = _content("parquet")
    shard_size: str = _content("128MB")
    shards: int | None = _content(None)
    shards_multiple_of: int = _content(1)
    row_group_size: str = _content("4MB")
    buckets: int = _content(64)
    bucket_edges: tuple[int, ...] | None = _content(None)
    pad_multiple: int = _content(8)
    eos_token: str | None = _content(None)
    no_eos: bool = _content(default=False)
    no_template: bool = _content(default=False)
    pad_token: str | None = _content(None)
    dedup: str = _content("none")
    max_length: int | None = _content(None)
    overflow: str | None = _content(None)
    split: str = _content("train=1")
    split_by: str | None = _content(None)
    seed: int = _content(0)
    max_object_size: str = _content("256MB")
    on_duplicate_id: str = _content("keep")
    source_format: str = _content("auto")
    tokenizer_backend: str = "auto"
    store: str = "auto"
    scheduler: str = "local"
    workers: int | None = None
    memory_limit: str | None = None
    on_bad: str = "set-aside"
    max_bad: str | None = None
    overwrite: bool = False
    staging: str | None = None
    storage_options: tuple[tuple[str, str], ...] = ()
    source_list: str | None = None
    shared_filesystem: bool = False
    unsafe_publish: bool = False
    progress: bool | None = None

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ConfigError("; ".join(problems), problems=problems)

    def _problems(self) -> Any:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                yield f"{flag(name)} must be one of {', '.join(allowed)}, got {value!r}"
        if self.format == "recordio" and re.search(r"(^|,)\s*index\s*=", self.split):
            yield "--format recordio keeps its index files in a folder index beside the splits: give that split another name"
        if self.format == "recordio" and any(column.partition(":")[0].strip() == "values" for column in self.columns):
            yield "--column values: RecordIO shards keep the token ids under that name; rename the field"
        for name in ("buckets", "pad_multiple", "shards_multiple_of"):
            if getattr(self, name) < 1:
                yield f"{flag(name)} must be at least 1, got {getattr(self, name)}"
        for name in ("shards", "max_length", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"{flag(name)} must be at least 1, got {value}"
        yield from self._size_problems()
        if self.max_length is not None and self.overflow is None:
            yield "--max-length needs --overflow truncate, split or reject: nothing is cut unless you say how"
        if self.overflow is not None and self.max_length is None:
            yield "--overflow needs --max-length"
        if self.no_eos and self.eos_token is not None:
            yield "--eos-token and --no-eos exclude each other"
        edges = self.bucket_edges
        if edges is not None and (not edges or list(edges) != sorted(set(edges)) or edges[0] < 1):
            yield f"--bucket-edges must be ascending and positive, got {','.join(map(str, edges))}"
        elif edges is not None and any(edge % max(1, self.pad_multiple) for edge in edges):
            yield f"--bucket-edges must be multiples of --pad-multiple {self.pad_multiple}, got {','.join(map(str, edges))}"
        if not re.fullmatch(r"local|serial|(tcp|tls|ws|wss)://[^/]+:[0-9]{1,5}", self.scheduler):
            yield f"--scheduler must be local, serial or an address with a port, such as tcp://host:8786, got {self.scheduler!r}"

    def _size_problems(self) -> Any:
        for name in ("row_group_size", "max_object_size", "memory_limit"):
            value = getattr(self, name)
            if value is not None and parse_bytes(value) is None:
                yield f"{flag(name)} must be a size such as 4MB or 256KiB, got {value!r}"
        if self.shard_tokens is None and parse_bytes(self.shard_size) is None:
            yield f"--shard-size must be a size such as 128MB, or a number of tokens such as 100000tok, got {self.shard_size!r}"
        if self.max_bad is not None and self.max_bad_of(100) is None:
            yield f"--max-bad must be a number of documents or a share such as 1%, got {self.max_bad!r}"

    @property
    def shard_tokens(self) -> int | None:
        """Return the wanted tokens a shard, where --shard-size counts tokens."""
        match = re.fullmatch(r"([0-9]+) ?tok(?:ens)?", self.shard_size.strip())
        return int(match[1]) if match and int(match[1]) > 0 else None

    @property
    def shard_bytes(self) -> int | None:
        """Return the wanted bytes a shard, where --shard-size counts bytes."""
        return parse_bytes(self.shard_size) if self.shard_tokens is None else None

    @property
    def row_group_bytes(self) -> int:
        """Return the largest row group in uncompressed bytes."""
        return _checked_bytes(self.row_group_size)

    @property
    def max_object_bytes(self) -> int:
        """Return the largest object that is read whole, in bytes."""
        return _checked_bytes(self.max_object_size)

    @property
    def hashed(self) -> tuple[str, ...]:
        """Return what of documents is compared over the whole input: texts (dedup, leaks between splits), ids."""
        texts = self.dedup != "none" or "," in self.split
        return ("texts",) * texts + ("ids",) * (self.id_field is not None)

    def max_bad_of(self, found: int) -> int | None:
        """Return how many of the documents found may be set aside; None for no limit (or a limit that is no number)."""
        if self.max_bad is None:
            return None
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", self.max_bad.strip())
        if match is None or (not match[2] and "." in match[1]):
            return None
        return int(float(match[1]) / 100 * found) if match[2] else int(match[1])

    def content(self) -> dict[str, Any]:
        """Return the settings that change what is written, JSON-able, in alphabetical order."""
        chosen = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("content")}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in sorted(chosen.items())}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Return settings from names and values as a job file or a caller gives them; unknown names are refused."""
        known = {f.name: f for f in fields(cls)}
        aliases = {"column": "columns", "storage_option": "storage_options"}
        out: dict[str, Any] = {}
        for raw, value in values.items():
            name = aliases.get(raw.replace("-", "_"), raw.replace("-", "_"))
            if name not in known:
                raise ConfigError(f"unknown setting {raw!r}; known are {', '.join(sorted(known))}", setting=raw)
            out[name] = _coerced(name, value)
        return cls(**out)


def _coerced(name: str, value: Any) -> Any:
    """Return a value in the type of its setting, for values that come from TOML or Python."""
    if value is None:
        return None
    if name == "columns":
        columns = (value,) if isinstance(value, str) else value
        if not isinstance(columns, (list, tuple)) or not all(isinstance(column, str) for column in columns):
            raise ConfigError(f"--column must be a text, or a list of texts, got {value!r}", setting=name)
        return tuple(columns)
    if name == "bucket_edges":
        edges = value.split(",") if isinstance(value, str) else value
        try:
            if isinstance(edges, (list, tuple)) and all(type(edge) in (int, str) for edge in edges):
                return tuple(int(edge) for edge in edges)
        except ValueError:
            pass  # a text that is no number
        raise ConfigError(f"--bucket-edges must be whole numbers with commas between, got {value!r}", setting=name)
    if name == "storage_options":
        return _options(value)
    if name == "split" and isinstance(value, Mapping):
        return ",".join(f"{key}={share}" for key, share in value.items())
    texts = ("shard_size", "row_group_size", "max_object_size", "memory_limit", "max_bad", "eos_token", "pad_token")
    if name in texts and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    expected: dict[str, type] = {
        "seed": int,
        "buckets": int,
        "pad_multiple": int,
        "shards": int,
        "max_length": int,
        "workers": int,
        "shards_multiple_of": int,
    }
    if name in expected and (not isinstance(value, int) or isinstance(value, bool)):
        raise ConfigError(f"{flag(name)} must be a whole number, got {value!r}", setting=name)
    flags = ("no_eos", "no_template", "overwrite", "shared_filesystem", "unsafe_publish", "progress")
    if name in flags and not isinstance(value, bool):
        raise ConfigError(f"{flag(name)} must be true or false, got {value!r}", setting=name)
    if name not in expected and name not in flags and not isinstance(value, str):
        raise ConfigError(f"{flag(name)} must be a text, got {value!r}", setting=name)
    return value


def _options(value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, Mapping):
        return tuple(sorted((str(k), str(v)) for k, v in value.items()))
    pairs = []
    for item in value if isinstance(value, (list, tuple)) else [value]:
        pair = item.split("=", 1) if isinstance(item, str) else item
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not pair[0]:
            raise ConfigError(f"--storage-option must be key=value, got {item!r}", setting="storage_options")
        pairs.append((str(pair[0]), str(pair[1])))
    return tuple(sorted(pairs))


def flag(name: str) -> str:
    """Return the flag of a setting, as users type it."""
    singular = {"columns": "column", "storage_options": "storage-option"}.get(name, name)
    return "--" + singular.replace("_", "-")


def parse_bytes(text: str) -> int | None:
    """Return the bytes that a text such as 128MB, 4 MiB or 1000 says; None where it says none."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in UNITS:
        return None
    size = int(float(match[1]) * UNITS[match[2]])
    return size if size > 0 else None


def _checked_bytes(text: str) -> int:
    size = parse_bytes(text)
    assert size is not None, "checked at construction"
    return size
