"""Reports and shards, put together: the schema, the ledger, the manifest and the summary. Pure but for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from shardprep.core.manifest import Generation, Ledger, Manifest, ShardInfo, SplitInfo, fingerprint_of
from shardprep.core.plan import ScanPlan, ScanReport, ShardPlan
from shardprep.formats.columns import arrow_type
from shardprep.formats.reasons import REPEATED
from shardprep.formats.shard import schema_rows, shard_schema
from shardprep.formats.tokenizer import TokenizerSpec
from shardprep.prep.job import Job
from shardprep.prep.late import Late
from shardprep.prep.sources import Listed
from shardprep.prep.tags import REFERENCES, without_version
from shardprep.version import __version__


def shard_schema_of(job: Job, types: Mapping[str, str], plan: ShardPlan, split: str) -> pa.Schema:
    """Return the schema of a split's shards, with the metadata that says what the rows are."""
    columns = pa.schema([pa.field(spec.name, arrow_type(types[spec.name])) for spec in job.fields.columns])
    facts = {
        "version": 1,
        "split": split,
        "tokenizer": job.spec.fingerprint,
        "eos_id": job.spec.eos_id,
        "pad_id": job.spec.pad_id,
        "bucket_edges": list(plan.buckets.edges),
        "pad_multiple": plan.buckets.pad_multiple,
    }
    metadata = {"shardprep": orjson.dumps(facts, option=orjson.OPT_SORT_KEYS).decode()}
    return shard_schema(columns, job.settings.overflow == "split", metadata)


def in_numbers(set_aside: Mapping[str, int]) -> str:
    """Return documents by reason for a message, the most first."""
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(set_aside.items(), key=lambda x: (-x[1], x[0])))


def bad_of(set_aside: Mapping[str, int]) -> dict[str, int]:
    """Return documents by reason without repeats, which were asked to be set aside: what --max-bad counts."""
    return {reason: count for reason, count in set_aside.items() if reason not in REPEATED}


def listing_rejects(listed: Listed) -> dict[str, int]:
    """Return reason -> number of the objects that were set aside while listing."""
    counts: dict[str, int] = {}
    for _, reason, _ in listed.rejects:
        counts[str(reason)] = counts.get(str(reason), 0) + 1
    return counts


def with_listing_rejects(listed: Listed, lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the reject lines of the listing, then the others."""
    for name, reason, detail in listed.rejects:
        value = {"key": name, "line": None, "offset": 0, "reason": str(reason), "detail": detail}
        yield orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
    yield from lines


def lines_before(plan: ScanPlan, reports: Sequence[ScanReport]) -> dict[int, int]:
    """Return, for each task of a byte range, how many lines of its object end before it."""
    feeds = {report.task: report.line_feeds for report in reports}
    ranges = [report.task for report in reports if not plan.count[report.task]]
    return {task: sum(feeds[int(other)] for other in plan.ranges_before(task)) for task in ranges}


def ledger_of(listed: Listed, reports: Sequence[ScanReport], late: Late, infos: Sequence[ShardInfo]) -> Ledger:
    """Return where every document went."""
    set_aside: dict[str, int] = {}
    for counts in [*(report.set_aside for report in reports), late.set_aside, listing_rejects(listed)]:
        for reason, count in counts.items():
            set_aside[reason] = set_aside.get(reason, 0) + count
    objects = {
        key: listed.counters.get(key, 0) for key in ("objects", "markers", "side_files", "listed_twice", "bytes")
    }
    objects["without_documents"] = sum(report.objects.get("empty", 0) for report in reports)
    references = sum(report.objects.get(REFERENCES, 0) for report in reports)
    if references:
        objects[REFERENCES] = references
    return Ledger(
        found=sum(report.found for report in reports) + len(listed.rejects),
        written=sum(report.documents for report in reports) - sum(late.set_aside.values()),
        set_aside=dict(sorted(set_aside.items())),
        rows=sum(info.rows for info in infos),
        tokens=sum(info.tokens for info in infos),
        tokens_cut=sum(report.tokens_cut for report in reports) - sum(late.cuts),
        documents_cut=sum(report.documents_cut for report in reports) - len(late.cuts),
        objects=objects,
    )


def tokenizer_facts(spec: TokenizerSpec) -> dict[str, Any]:
    """Return what the manifest says of the tokenizer."""
    return {
        "fingerprint": spec.fingerprint,
        "vocab_size": spec.vocab_size,
        "eos_id": spec.eos_id,
        "pad_id": spec.pad_id,
        "prefix": list(spec.prefix),
        "suffix": list(spec.suffix),
        "notes": list(spec.notes),
    }


def manifest_of(
    job: Job,
    name: str,
    plan: ShardPlan,
    schema: pa.Schema,
    infos: Sequence[ShardInfo],
    ledger: Ledger,
    late: Late,
    warnings: Sequence[str],
) -> Manifest:
    """Return the manifest of what was written."""
    splits = tuple(
        SplitInfo(s.name, s.histogram, s.rows, s.tokens, tuple(info for info in infos if info.split == s.name))
        for s in plan.splits
    )
    generations = (Generation(splits),)
    rows, tokenizer = schema_rows(schema), tokenizer_facts(job.spec)
    return Manifest(
        plan=name,
        fingerprint=fingerprint_of(generations=generations, schema=rows, tokenizer=tokenizer, buckets=plan.buckets),
        settings=job.settings.content(),
        tokenizer=tokenizer,
        schema=rows,
        buckets=plan.buckets,
        generations=generations,
        ledger=ledger,
        created_by={"shardprep": __version__, "pyarrow": pa.__version__},
        warnings=tuple(warnings),
        duplicates=late.facts,
    )


def warnings_of(late: Late, giants: Sequence[str], ledger: Ledger, listed: Listed) -> list[str]:
    """Return what a person should know of the data, in order."""
    out = [*giants, *_blind_spots(ledger, listed)]
    if late.facts.get("ids") and not late.set_aside.get("duplicate_id"):
        examples = ", ".join(late.facts["ids_examples"])
        out.append(f"{late.facts['ids']:,} documents have an id that an earlier one has, for example {examples}")
    if late.facts.get("texts_in_two_splits"):
        pairs = "; ".join(" and ".join(pair) for pair in late.facts["texts_in_two_splits_examples"])
        out.append(
            f"{late.facts['texts_in_two_splits']:,} documents have a text that also stands in another split, for example {pairs}; "
            "--dedup exact keeps the first of each"
        )
    if ledger.objects.get("listed_twice"):
        out.append(f"{ledger.objects['listed_twice']:,} objects were named twice in the source, and read once")
    return out


def _blind_spots(ledger: Ledger, listed: Listed) -> list[str]:
    """Return a line for each part of the source of which a later build would not see a change."""
    said = "this source has no versions of them, so a later change is not seen; --overwrite reads them again"
    blind = without_version(listed.table)
    references = ledger.objects.get(REFERENCES, 0)
    out = []
    if blind:
        out.append(f"{blind:,} of {len(listed.table):,} objects have neither an ETag nor a modification time: {said}")
    if references:
        out.append(f"{references:,} texts lie behind a source-ref: {said}")
    return out


def summary(manifest: Manifest) -> dict[str, Any]:
    """Return the numbers of a build, as --json prints them."""
    ledger = manifest.ledger
    return {
        "found": ledger.found,
        "written": ledger.written,
        "set_aside": dict(ledger.set_aside),
        "rows": ledger.rows,
        "tokens": ledger.tokens,
        "shards": len(manifest.shards),
        "splits": {
            split.name: {"rows": split.rows, "tokens": split.tokens, "shards": len(split.shards)}
            for generation in manifest.generations
            for split in generation.splits
        },
        "padding_share": manifest.padding_share,
        "tokens_cut": ledger.tokens_cut,
        "documents_cut": ledger.documents_cut,
        "objects": dict(ledger.objects),
        "duplicates": manifest.duplicates,
        "warnings": list(manifest.warnings),
        "fingerprint": manifest.fingerprint,
        "plan": manifest.plan,
    }
