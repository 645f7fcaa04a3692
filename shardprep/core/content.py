"""What a data set consists of: shards, splits, generations, and the ledger of documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from shardprep.core.canonical import Form
from shardprep.core.deal import rows_of_shards, tokens_of_shards
from shardprep.core.histogram import LengthHistogram
from shardprep.errors import ManifestError


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard. `name` is its key below the data set's root: "3f2a91c0/train/00000-of-00012.parquet".

    bytes, footer_bytes    sizes of the file and of its footer with the 8 last bytes
    sha256, footer_sha256  of the file and of its footer, in hex
    escapes                only of RecordIO shards, whose "footer" is a file of its own: magic words that had to be escaped
    """

    name: str
    split: str
    rows: int
    tokens: int
    bytes: int
    sha256: str
    footer_bytes: int
    footer_sha256: str
    row_groups: int = 0
    escapes: int | None = None

    def document(self) -> dict[str, Any]:
        """Return the shard as JSON values."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def read(cls, form: Form, value: dict[str, Any], at: str) -> Self:
        """Return the shard in JSON values; faults go to the form."""
        return cls(
            name=form.text(value, "name", at),
            split=form.text(value, "split", at),
            rows=form.number(value, "rows", at),
            tokens=form.number(value, "tokens", at),
            bytes=form.number(value, "bytes", at),
            sha256=form.text(value, "sha256", at),
            footer_bytes=form.number(value, "footer_bytes", at),
            footer_sha256=form.text(value, "footer_sha256", at),
            row_groups=form.number(value, "row_groups", at),
            escapes=form.number(value, "escapes", at) if "escapes" in value else None,
        )


@dataclass(frozen=True)
class SplitInfo:
    """One split of a generation: its length histogram, and its shards in the order of the deal (none without rows)."""

    name: str
    histogram: LengthHistogram
    rows: int
    tokens: int
    shards: tuple[ShardInfo, ...]

    def facts(self) -> dict[str, Any]:
        """Return all but the shards as JSON values."""
        return {
            "name": self.name,
            "rows": self.rows,
            "tokens": self.tokens,
            "lengths": self.histogram.lengths.tolist(),
            "counts": self.histogram.counts.tolist(),
        }

    def document(self) -> dict[str, Any]:
        """Return the split as JSON values."""
        return {**self.facts(), "shards": [shard.document() for shard in self.shards]}

    @classmethod
    def read(cls, form: Form, value: dict[str, Any], at: str) -> Self:
        """Return the split in JSON values; faults go to the form."""
        lengths, counts = form.numbers(value, "lengths", at), form.numbers(value, "counts", at)
        if len(lengths) != len(counts) or (np.diff(lengths) <= 0).any() or (counts <= 0).any():
            form.issues.append(f"{at}: lengths must ascend, and each needs a count above 0")
            lengths = counts = np.zeros(0, dtype=np.int64)
        shards = form.objects(value, "shards", at)
        return cls(
            name=form.text(value, "name", at),
            histogram=LengthHistogram(lengths, counts),
            rows=form.number(value, "rows", at),
            tokens=form.number(value, "tokens", at),
            shards=tuple(ShardInfo.read(form, shard, f"{at}.shards[{i}]") for i, shard in enumerate(shards)),
        )

    def faults(self) -> Iterator[str]:
        """Yield what does not add up: histogram, totals, and what the deal says of each shard."""
        histogram, shards = self.histogram, self.shards
        for what in ("rows", "tokens"):
            counted, told = getattr(histogram, what), getattr(self, what)
            if counted != told:
                yield f"split {self.name}: the histogram counts {counted} {what}, the split says {told}"
        if not shards:
            if histogram.rows:
                yield f"split {self.name}: {histogram.rows} rows and no shard"
            return
        expected = {
            "rows": rows_of_shards(histogram.rows, len(shards)).tolist(),
            "tokens": tokens_of_shards(histogram, len(shards)).tolist(),
        }
        for index, shard in enumerate(shards):
            if shard.split != self.name:
                yield f"shard {shard.name} says split {shard.split}, but is listed in {self.name}"
            if not shard.rows:
                yield f"shard {shard.name} is empty"
            for what, values in expected.items():
                if getattr(shard, what) != values[index]:
                    yield f"shard {shard.name} has {getattr(shard, what)} {what}, the deal says {values[index]}"


@dataclass(frozen=True)
class Generation:
    """What one build wrote; a data set that has grown has several, each with its own histograms."""

    splits: tuple[SplitInfo, ...]

    def document(self) -> dict[str, Any]:
        """Return the generation as JSON values."""
        return {"splits": [split.document() for split in self.splits]}

    @classmethod
    def read(cls, form: Form, value: dict[str, Any], at: str) -> Self:
        """Return the generation in JSON values; faults go to the form."""
        splits = form.objects(value, "splits", at)
        return cls(tuple(SplitInfo.read(form, split, f"{at}.splits[{i}]") for i, split in enumerate(splits)))


@dataclass(frozen=True)
class Ledger:
    """Where every document went: found = written + set aside.

    found, written            documents
    set_aside                 reason -> documents
    rows, tokens              rows are more than documents with --overflow split
    tokens_cut, documents_cut lost to --overflow truncate
    objects                   counters over objects: read, empty, markers, side files
    """

    found: int
    written: int
    set_aside: dict[str, int]
    rows: int
    tokens: int
    tokens_cut: int = 0
    documents_cut: int = 0
    objects: dict[str, int] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ManifestError unless every document found was written or set aside."""
        aside = sum(self.set_aside.values())
        if self.found != self.written + aside:
            raise ManifestError(
                f"the ledger does not add up: {self.found} documents found, {self.written} written and {aside} set"
                f" aside; {self.found - self.written - aside} are not accounted for",
                found=self.found,
                written=self.written,
                set_aside=aside,
            )

    def document(self) -> dict[str, Any]:
        """Return the ledger as JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, form: Form, value: dict[str, Any], at: str) -> Self:
        """Return the ledger in JSON values; faults go to the form."""
        return cls(
            found=form.number(value, "found", at),
            written=form.number(value, "written", at),
            set_aside=form.counters(value, "set_aside", at),
            rows=form.number(value, "rows", at),
            tokens=form.number(value, "tokens", at),
            tokens_cut=form.number(value, "tokens_cut", at),
            documents_cut=form.number(value, "documents_cut", at),
            objects=form.counters(value, "objects", at),
        )
