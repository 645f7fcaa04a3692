"""What a build would do: listed for real, tried on a few objects, and estimated; nothing is written."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardprep.core.plan import ScanPlan, plan_scan, shard_count
from shardprep.core.splits import parse_splits
from shardprep.errors import ConfigError, StoreError
from shardprep.formats.backends import load_encoder
from shardprep.formats.documents import DocumentParser
from shardprep.prep.job import fields_of
from shardprep.prep.progress import Bar
from shardprep.prep.settings import Settings
from shardprep.prep.shard_files import BYTES_PER_TOKEN
from shardprep.prep.sources import Listed, list_source
from shardprep.prep.tokenizer_file import decide, read_tokenizer
from shardprep.storage.store import local_path_of, open_store

TRIED_OBJECTS = 20
TRIED_BYTES = 8 << 20
# S3 Standard, us-east-1, as restated in 2025; look up your region's: https://aws.amazon.com/s3/pricing/
USD_PER_1000_GET = 0.0004
USD_PER_1000_LIST = 0.005
KEYS_PER_LIST = 1_000


@dataclass(frozen=True)
class Estimate:
    """What was listed and tried, and what follows from it; times are for this machine's workers.

    examples   (place, reason, detail) of the first documents that the settings set aside
    """

    objects: int
    bytes: int
    counters: dict[str, int]
    tasks: int
    tried_objects: int
    tried_ranges: int
    tried_bytes: int
    tried_documents: int
    tried_tokens: int
    tried_seconds: float
    set_aside: dict[str, int]
    examples: tuple[tuple[str, str, str], ...]
    backend: str
    workers: int
    shards: dict[str, int]
    is_remote: bool

    @property
    def tokens(self) -> int:
        """Return the likely number of tokens."""
        return int(self.tried_tokens / max(1, self.tried_bytes) * self.bytes)

    @property
    def documents(self) -> int:
        """Return the likely number of documents: by objects where they were read whole, else by bytes."""
        if self.tried_ranges:
            return int(self.tried_documents / max(1, self.tried_bytes) * self.bytes)
        return int(self.tried_documents / max(1, self.tried_objects) * self.objects)

    @property
    def get_requests(self) -> int:
        """Return the number of GET requests on the source."""
        return max(self.objects, self.tasks)

    @property
    def list_requests(self) -> int:
        """Return the number of LIST requests on the source."""
        return -(-self.objects // KEYS_PER_LIST) + 1

    @property
    def request_usd(self) -> float:
        """Return the price of the requests on an S3 source, in US dollars."""
        if not self.is_remote:
            return 0.0
        return self.get_requests / 1000 * USD_PER_1000_GET + self.list_requests / 1000 * USD_PER_1000_LIST

    @property
    def seconds(self) -> float:
        """Return the likely seconds of the scan; writing adds about a third."""
        return self.tried_seconds / max(1, self.tried_bytes) * self.bytes / self.workers * 1.33 + 3

    def summary(self) -> dict[str, Any]:
        """Return the estimate as --json prints it."""
        return {
            "dry_run": True,
            "objects": self.objects,
            "bytes": self.bytes,
            "counters": self.counters,
            "tasks": self.tasks,
            "get_requests": self.get_requests if self.is_remote else 0,
            "list_requests": self.list_requests if self.is_remote else 0,
            "request_usd": round(self.request_usd, 4),
            "tried_objects": self.tried_objects,
            "tried_documents": self.tried_documents,
            "set_aside": self.set_aside,
            "examples": [list(example) for example in self.examples],
            "likely_documents": self.documents,
            "likely_tokens": self.tokens,
            "likely_shards": self.shards,
            "likely_seconds": round(self.seconds, 1),
            "tokenizer_backend": self.backend,
            "workers": self.workers,
        }

    def text(self) -> str:
        """Return the estimate for a person."""
        lines = [
            f"source     {self.objects:,} objects, {self.bytes / 1e6:,.1f} MB, in {self.tasks:,} scan tasks",
            f"skipped    {self.counters.get('markers', 0):,} markers, {self.counters.get('side_files', 0):,} side files",
        ]
        if self.is_remote:
            lines.append(
                f"requests   {self.get_requests:,} GET and {self.list_requests:,} LIST, "
                f"about {self.request_usd:.2f} USD at S3 list prices"
            )
        lines.append(
            f"tried      {self.tried_objects:,} objects: {self.tried_documents:,} documents, "
            f"{self.tried_tokens:,} tokens ({self.backend})"
        )
        lines += [f"set aside  {count:,} of them: {reason}" for reason, count in sorted(self.set_aside.items())]
        lines += [f"           {place}: {reason}: {detail}" for place, reason, detail in self.examples]
        shards = ", ".join(f"{count:,} {name}" for name, count in self.shards.items())
        lines += [
            f"likely     {self.documents:,} documents, {self.tokens:,} tokens, shards: {shards}",
            f"time       about {self.seconds:,.0f} s with {self.workers} workers on a machine like this",
            "nothing was written (--dry-run)",
        ]
        return "\n".join(lines)


def dry_run(source: str | None, output: str | None, tokenizer: Any, settings: Settings) -> Estimate:
    """Return what a build of these settings would do."""
    del output  # looked at by nobody: it need not even exist
    if (source is None) == (settings.source_list is None):
        raise ConfigError("give either a SOURCE or --source-list FILE")
    options = dict(settings.storage_options)
    splits = parse_splits(settings.split)
    loaded = decide(read_tokenizer(tokenizer, settings, options), settings)
    with Bar("listing", None, "object", shown=settings.progress) as bar:
        listed = list_source(
            source,
            source_list=settings.source_list,
            source_format=settings.source_format,
            options=options,
            store_kind=settings.store,
            on_progress=bar.reach,
        )
    plan = plan_scan(listed.table, seed=settings.seed)
    encoder = load_encoder(tokenizer if loaded.custom else loaded.data, loaded.spec, settings.tokenizer_backend)
    tried = _try(listed, plan, settings, encoder, options)
    total_bytes = int(listed.table.sizes.sum())
    ratio = total_bytes / max(1, tried["bytes"])
    shards = {}
    for name, fraction in zip(splits.names, splits.fractions, strict=True):
        rows, tokens = int(tried["documents"] * ratio * fraction), int(tried["tokens"] * ratio * fraction)
        shards[name] = shard_count(
            rows,
            tokens,
            int(tokens * BYTES_PER_TOKEN[settings.format]),
            shard_bytes=settings.shard_bytes,
            shard_tokens=settings.shard_tokens,
            shards=settings.shards,
            multiple_of=settings.shards_multiple_of,
        )
    return Estimate(
        objects=len(listed.table),
        bytes=total_bytes,
        counters=dict(listed.counters),
        tasks=plan.tasks,
        tried_objects=tried["objects"],
        tried_ranges=tried["ranges"],
        tried_bytes=tried["bytes"],
        tried_documents=tried["documents"],
        tried_tokens=tried["tokens"],
        tried_seconds=tried["seconds"],
        set_aside=tried["set_aside"],
        examples=tuple(tried["examples"]),
        backend=encoder.backend,
        workers=settings.workers or os.cpu_count() or 1,
        shards=shards,
        is_remote=any(local_path_of(root) is None for root in listed.table.roots),
    )


def _try(listed: Listed, plan: ScanPlan, settings: Settings, encoder: Any, options: dict[str, str]) -> dict[str, Any]:
    """Read a few objects spread over the source, with the parser and the tokenizer of a real run."""
    parser = DocumentParser(
        fields_of(settings), max_object_bytes=settings.max_object_bytes, source_ref=listed.kind == "augmented"
    )
    tried: dict[str, Any] = {
        "objects": 0,
        "ranges": 0,
        "bytes": 0,
        "documents": 0,
        "tokens": 0,
        "seconds": 0.0,
        "set_aside": {},
        "examples": [],
    }
    stores = [open_store(root, options=options, kind=settings.store) for root in listed.table.roots]
    for index in np.linspace(0, plan.tasks - 1, min(plan.tasks, TRIED_OBJECTS)).astype(int) if plan.tasks else []:
        task = plan.task(int(index))
        for ref in task.objects[: -(-TRIED_OBJECTS // max(1, plan.tasks))]:
            if tried["bytes"] >= TRIED_BYTES:
                break
            began = time.perf_counter()
            try:
                parsed, size = _parsed(parser, stores[ref.root], ref, task.byte_range)
            except StoreError as error:
                tried["examples"].append((ref.name, "unreadable_object", error.message))
                continue
            texts = [document.text for document in parsed.documents if document.text]
            ids, _ = encoder.encode(texts) if texts else (np.zeros(0), None)
            tried["seconds"] += time.perf_counter() - began
            tried["objects"] += 1
            tried["ranges"] += task.byte_range is not None
            tried["bytes"] += size
            tried["documents"] += len(texts)
            tried["tokens"] += len(ids)
            for reject in parsed.rejects:
                tried["set_aside"][str(reject.reason)] = tried["set_aside"].get(str(reject.reason), 0) + 1
                if len(tried["examples"]) < 3:
                    place = ref.name if reject.line is None else f"{ref.name}, line {reject.line}"
                    tried["examples"].append((place, str(reject.reason), reject.detail))
    return tried


def _parsed(parser: DocumentParser, store: Any, ref: Any, byte_range: tuple[int, int] | None) -> tuple[Any, int]:
    """Return what an object holds; of a large one only whole lines near its beginning."""
    if byte_range is None:
        data = store.get(ref.key, etag=ref.etag, size_bytes=ref.size_bytes)
        return parser.parse_object(ref.name, data), len(data)
    data = store.get_range(ref.key, 0, min(ref.size_bytes, 1 << 20))
    whole = data[: data.rfind(b"\n") + 1] or data
    return parser.parse_lines(ref.name, whole, 0), len(whole)
