"""The content tag: what tells the rows of this run from those that another run of the same plan may find.

Names of shards come from the plan, so that two jobs of one plan write the same bytes under the same names. That holds as
long as the rows follow from the plan. They do not where an object could not be read, had changed, or ended its worker: the
next job may read it. Nor where a source tells no versions: the plan does not see a change. There the names of shards, reject
files and late drops carry a digest of what was found, and two such jobs never write under one name (docs/decisions/0007).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import orjson
import pyarrow.compute as pc

from shardprep.core.manifest import Manifest
from shardprep.core.plan import ScanReport, SourceTable
from shardprep.errors import StoreError
from shardprep.formats.reasons import FAULTS
from shardprep.prep.job import Job
from shardprep.prep.rejects import staged_rejects
from shardprep.prep.stage import TAG_DIGITS
from shardprep.storage.fetch import Item, fetch
from shardprep.storage.store import Store, local_path_of

REFERENCES = "references"  # counter of the ledger: texts that lie behind a URI, for which nobody tells a version


def content_tag(job: Job, store: Store, reports: Sequence[ScanReport], *, versionless: bool) -> str:
    """Return 8 hex digits where the rows do not follow from the plan alone, else ""; the same for the same rows.

    The words of a reject do not enter, since they tell of tries and hosts; nor does the tokenizer's backend.
    """
    faulty = [report.task for report in reports if has_faults(report)]
    is_blind = versionless or any(report.objects.get(REFERENCES) for report in reports)
    if not faulty and not is_blind:
        return ""
    digest = hashlib.sha256(_sum_of_faults(staged_rejects(job, store, faulty, (), {})))
    if is_blind:
        for content in _contents(job, store, reports):
            digest.update(content)
    return digest.hexdigest()[:TAG_DIGITS]


def has_faults(report: ScanReport) -> bool:
    """Say whether something was set aside that another run may be able to use."""
    return not FAULTS.isdisjoint(report.set_aside)


def _sum_of_faults(lines: Iterator[bytes]) -> bytes:
    """Return 32 bytes that tell one set of faults from another, in any order: they may be millions, and are not kept."""
    total = 0
    for line in lines:
        value = orjson.loads(line)
        if value["reason"] in FAULTS:
            told = orjson.dumps([value["key"], value["offset"], value["reason"]])
            total += int.from_bytes(hashlib.sha256(told).digest(), "big")
    return (total % (1 << 256)).to_bytes(32, "big")


def _contents(job: Job, store: Store, reports: Sequence[ScanReport]) -> Iterator[bytes]:
    """Yield for each task bytes that tell its rows from others."""
    names = (Item(job.staged_name(report.task) + ".json", None) for report in reports)
    for report, (_, data) in zip(reports, fetch(store, names), strict=True):
        if isinstance(data, StoreError):
            raise data
        value = orjson.loads(data)
        del value["report"]["backend"]
        if has_faults(report):  # counted above, without their words
            del value["others"][".rejects.jsonl"]
        yield orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def without_version(table: SourceTable) -> int:
    """Return how many objects have neither an ETag nor a modification time. A local link to nothing is none of them."""
    if not len(table):
        return 0
    local = [number for number, root in enumerate(table.roots) if local_path_of(root) is not None]
    blank = pc.equal(table.etags, "").to_numpy(zero_copy_only=False)
    for number in local:
        blank &= table.root != number
    return int(blank.sum())


def may_differ(manifest: Manifest, table: SourceTable) -> bool:
    """Say whether the very same plan may give other rows now than when this was built."""
    return (
        without_version(table) > 0
        or bool(manifest.ledger.objects.get(REFERENCES))
        or not FAULTS.isdisjoint(manifest.ledger.set_aside)
    )
