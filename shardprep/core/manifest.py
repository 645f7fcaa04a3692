"""The manifest: the only door to a data set. Values, canonical bytes, and what must add up.

The bytes are a pure function of the values: JSON with sorted keys, UTF-8, lists of objects one element a line, a line
feed at the end. No time, host, URI or number of workers is in them. Version 1 is read for ever; keys that this version
does not know are ignored, so later versions may add some.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardprep.core.buckets import LengthBuckets, padding_share
from shardprep.core.canonical import Form, compact, rendered
from shardprep.core.content import Generation, Ledger, ShardInfo, SplitInfo
from shardprep.core.histogram import merged
from shardprep.errors import ConfigError, ManifestError

__all__ = ["Generation", "Ledger", "Manifest", "ShardInfo", "SplitInfo", "fingerprint_of", "parse"]

VERSION = 1
TOKENIZER_IDENTITY = ("fingerprint", "eos_id", "pad_id")  # what of the tokenizer makes the rows what they are


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All of a data set but its rows.

    plan         names the folder of the build, 8 hex digits
    fingerprint  of the content: what the state of a reader is tied to (`fingerprint_of`)
    settings     what was asked for, without places and workers
    tokenizer    fingerprint, eos_id, pad_id, and what else is known of it
    schema       columns of the shards in order: {"name", "type", "nullable"}
    created_by   versions: {"shardprep": ..., "pyarrow": ...}
    warnings     for people, in order
    duplicates   counts of repeated ids and texts, and the first few of them
    """

    plan: str
    fingerprint: str
    settings: dict[str, Any]
    tokenizer: dict[str, Any]
    schema: tuple[dict[str, Any], ...]
    buckets: LengthBuckets
    generations: tuple[Generation, ...]
    ledger: Ledger
    created_by: dict[str, str]
    warnings: tuple[str, ...] = ()
    duplicates: dict[str, Any] = field(default_factory=dict)
    version: int = VERSION

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """Return all shards, generation by generation, split by split."""
        return tuple(shard for g in self.generations for split in g.splits for shard in split.shards)

    @property
    def padding_share(self) -> float:
        """Return the share of padding when every row is padded to its bucket's edge, rounded to 6 digits."""
        whole = merged([split.histogram for g in self.generations for split in g.splits])
        return round(padding_share(whole, self.buckets), 6)

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: the same values make the same bytes."""
        return (rendered(_document(self)) + "\n").encode()

    def check(self) -> None:
        """Raise ManifestError that names everything that does not add up."""
        issues = list(_issues(self))
        if issues:
            raise _fault(issues)


def fingerprint_of(
    *,
    generations: tuple[Generation, ...],
    schema: tuple[dict[str, Any], ...],
    tokenizer: Mapping[str, Any],
    buckets: LengthBuckets,
) -> str:
    """Return the SHA-256, in hex, of the content: shards by hash, splits, histograms, schema, tokenizer, edges.

    The plan, names of files and settings do not enter: the same rows in another place are the same data set.
    """
    content = {
        "version": VERSION,
        "schema": list(schema),
        "tokenizer": {key: tokenizer.get(key) for key in TOKENIZER_IDENTITY},
        "buckets": _buckets_document(buckets),
        "generations": [
            [
                {**split.facts(), "shards": [[s.rows, s.tokens, s.sha256] for s in split.shards]}
                for split in generation.splits
            ]
            for generation in generations
        ],
    }
    return hashlib.sha256(compact(content).encode()).hexdigest()


def _issues(manifest: Manifest) -> Iterator[str]:
    try:
        manifest.ledger.check()
    except ManifestError as error:
        yield str(error)
    names = Counter(shard.name for shard in manifest.shards)
    yield from (f"shard {name} is named {count} times" for name, count in names.items() if count > 1)
    for generation in manifest.generations:
        if len({split.name for split in generation.splits}) != len(generation.splits):
            yield "a split is named twice in one generation"
        for split in generation.splits:
            yield from split.faults()
    splits = [split for generation in manifest.generations for split in generation.splits]
    for what in ("rows", "tokens"):
        total, told = sum(getattr(split, what) for split in splits), getattr(manifest.ledger, what)
        if total != told:
            yield f"the splits hold {total} {what}, the ledger says {told}"
    if manifest.ledger.rows < manifest.ledger.written:
        yield f"{manifest.ledger.written} documents written, but only {manifest.ledger.rows} rows"
    missing = [key for key in TOKENIZER_IDENTITY if key not in manifest.tokenizer]
    if missing:
        yield f"the tokenizer lacks {', '.join(missing)}"
    content = fingerprint_of(
        generations=manifest.generations,
        schema=manifest.schema,
        tokenizer=manifest.tokenizer,
        buckets=manifest.buckets,
    )
    if content != manifest.fingerprint:
        yield f"the fingerprint is {manifest.fingerprint}, but the content's is {content}"


def _document(manifest: Manifest) -> dict[str, Any]:
    return {
        "version": manifest.version,
        "plan": manifest.plan,
        "fingerprint": manifest.fingerprint,
        "settings": manifest.settings,
        "tokenizer": manifest.tokenizer,
        "schema": list(manifest.schema),
        "buckets": _buckets_document(manifest.buckets),
        "generations": [generation.document() for generation in manifest.generations],
        "ledger": manifest.ledger.document(),
        "created_by": manifest.created_by,
        "warnings": list(manifest.warnings),
        "duplicates": manifest.duplicates,
        # Derived, for people and scripts; not read back.
        "padding_share": manifest.padding_share,
        "shards": len(manifest.shards),
    }


def parse(data: bytes) -> Manifest:
    """Return the manifest in these bytes. Raises ManifestError that names every fault of form; see `Manifest.check`."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ManifestError(f"the manifest is not JSON, perhaps it was cut: {error}") from error
    if not isinstance(value, dict) or "version" not in value:
        raise ManifestError("this is not a shardprep manifest: it has no version")
    if value["version"] != VERSION:
        raise ManifestError(
            f"this manifest has version {value['version']!r}, and this shardprep reads version {VERSION};"
            " install a newer shardprep"
        )
    form = Form()
    manifest = Manifest(
        plan=form.text(value, "plan", ""),
        fingerprint=form.text(value, "fingerprint", ""),
        settings=form.item(value, "settings", "", dict),
        tokenizer=form.item(value, "tokenizer", "", dict),
        schema=tuple(form.objects(value, "schema", "")),
        buckets=_read_buckets(form, form.item(value, "buckets", "", dict)),
        generations=tuple(
            Generation.read(form, generation, f"generations[{i}]")
            for i, generation in enumerate(form.objects(value, "generations", ""))
        ),
        ledger=Ledger.read(form, form.item(value, "ledger", "", dict), "ledger"),
        created_by=form.item(value, "created_by", "", dict),
        warnings=tuple(map(str, form.item(value, "warnings", "", list))),
        duplicates=form.item(value, "duplicates", "", dict),
    )
    if form.issues:
        raise _fault(form.issues)
    return manifest


def _read_buckets(form: Form, value: dict[str, Any]) -> LengthBuckets:
    edges, multiple = form.numbers(value, "edges", "buckets"), form.number(value, "pad_multiple", "buckets")
    try:
        return LengthBuckets(tuple(edges.tolist()), multiple)
    except ConfigError as error:
        form.issues.append(f"buckets: {error}")
        return LengthBuckets((), 1)


def _buckets_document(buckets: LengthBuckets) -> dict[str, Any]:
    return {"edges": list(buckets.edges), "pad_multiple": buckets.pad_multiple}


def _fault(issues: list[str]) -> ManifestError:
    shown = "; ".join(issues[:10]) + (f"; and {len(issues) - 10} more" if len(issues) > 10 else "")
    return ManifestError(f"the manifest is broken: {shown}. Build the data set anew", issues=tuple(issues))
