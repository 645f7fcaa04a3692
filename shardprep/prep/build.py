"""The job from end to end: list, scan, plan, write, check, publish. It decides nothing that the core could decide."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa

from shardprep.core.manifest import Manifest, ShardInfo
from shardprep.core.plan import ScanPlan, ScanReport, ShardPlan, plan_id, plan_scan, plan_shards
from shardprep.core.splits import Splits, parse_splits
from shardprep.errors import (
    ConfigError,
    NotFound,
    SourceError,
    StoreError,
    TokenizerError,
    TooManyBad,
    WorkerError,
)
from shardprep.formats.probe import Verdict
from shardprep.prep import assemble, late
from shardprep.prep.engine import DaskEngine, Engine, SerialEngine, WorkerDied, package_versions
from shardprep.prep.engine_thread import engine_thread
from shardprep.prep.giants import giants
from shardprep.prep.globs import holds
from shardprep.prep.job import Job
from shardprep.prep.poison import Culprits, scan_without_culprits
from shardprep.prep.progress import Bar
from shardprep.prep.publish import Output, join, sweep_quietly
from shardprep.prep.rejects import parts, staged_rejects
from shardprep.prep.scan import ScanCall, scan
from shardprep.prep.settings import Settings
from shardprep.prep.shard_files import BYTES_PER_TOKEN, ENDINGS, names_beside
from shardprep.prep.sources import Listed, list_source
from shardprep.prep.stage import tags_of
from shardprep.prep.tags import content_tag, without_version
from shardprep.prep.tokenizer_file import LoadedTokenizer, RawTokenizer, decide, read_tokenizer
from shardprep.prep.verdicts import known_verdict
from shardprep.prep.warm import deaf_to_signals, fork_server
from shardprep.prep.write import WriteCall, side_of, write_shard
from shardprep.storage.store import Store, local_path_of, open_store
from shardprep.version import __version__

STAGED_BYTES = 32 << 20  # a writer holds about one batch of every staged file
SMALLEST_BATCH, LARGEST_BATCH = 64 << 10, 1 << 20

Page = Callable[[Manifest], str]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Built:
    """What a build made; `fresh` is False where it was there already."""

    manifest: Manifest
    uri: str
    seconds: float
    backend: str
    fresh: bool
    notes: tuple[str, ...] = ()

    @property
    def reasons(self) -> str:
        """Return what was set aside, by reason, for a message."""
        return assemble.in_numbers(self.manifest.ledger.set_aside)

    def summary(self) -> dict[str, Any]:
        """Return the numbers of `--json`."""
        return {**assemble.summary(self.manifest), "manifest": join(self.uri, "manifest.json")}


@dataclass
class _Run:
    """Everything of one build that its stages hand on."""

    settings: Settings
    output: Output
    tokenizer: LoadedTokenizer
    listed: Listed
    plan: ScanPlan
    plan_id: str
    splits: Splits
    job: Job
    staging: Store
    engine: Engine
    say: Say
    started: float
    known: frozenset[str] = frozenset()  # what an earlier run left in the staging folder
    backends: list[str] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def build(
    source: str | None,
    output: str,
    tokenizer: Any,
    settings: Settings,
    *,
    page: Page | None = None,
    say: Say | None = None,
) -> Built:
    """Build a data set and return what was made; the same call after a crash continues.

    `page` makes report.html; `say` takes the lines that a person should read. Raises ShardprepError of any kind; whatever
    happens, a data set exists only when its manifest exists.
    """
    started = time.monotonic()
    say = say or (lambda _: None)
    _check_places(source, output, settings)
    splits = parse_splits(settings.split)
    options = dict(settings.storage_options)
    raw = read_tokenizer(tokenizer, settings, options)
    with _starting_engine(settings, raw) as engine_of:
        loaded = decide(raw, settings)
        for note in loaded.spec.notes:
            say(f"tokenizer: {note}")
        out = Output.open(output, settings)
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
        name = plan_id(
            listed.table, _facts(settings, loaded, listed), {"shardprep": __version__, "pyarrow": pa.__version__}
        )
        if out.is_whole(name) and not (settings.overwrite and out.may_differ(listed.table)):
            assert out.existing is not None
            _judge_published(out.existing, settings)
            _sweep_staging(settings, output, name)
            return Built(out.existing, output, time.monotonic() - started, "", fresh=False)
        out.refuse_conflict(name, settings, listed.table)
        job = _job(settings, loaded, listed, output, name, splits, plan)
        staging = open_store(job.staging, options=options, kind=settings.store)
        known = frozenset(key for keys in staging.list() for key in keys.keys.to_pylist() if key.endswith(".json"))
        staging.put(loaded.key, loaded.data, durable=False)
        listing_s = time.monotonic() - started
        run = _Run(settings, out, loaded, listed, plan, name, splits, job, staging, engine_of(), say, started, known)
        run.timings |= {"listing": listing_s, "engine": time.monotonic() - started - listing_s}
        try:
            return _work(run, page)
        except NotFound:  # another job of the same plan published, and swept what was staged
            there = Output.open(output, settings)
            if there.existing is None or not there.is_whole(name):
                raise
            _sweep_staging(settings, output, name)
            _judge_published(there.existing, settings)
            say("another job built the same data set at the same time and published it first")
            return Built(there.existing, output, time.monotonic() - started, "", fresh=False)


def _check_places(source: str | None, output: str, settings: Settings) -> None:
    """Raise ConfigError for places that cannot work, before anything is done."""
    if (source is None) == (settings.source_list is None):
        raise ConfigError("give either a SOURCE or --source-list FILE")
    if not output:
        raise ConfigError("no output")
    for what, place in (("source", source), ("source list", settings.source_list)):
        if "\0" in (place or ""):
            raise ConfigError(f"the {what} {place!r} has a NUL byte in its name")
    for what, place in (("output", output), ("staging", settings.staging)):
        _check_folder(what, place)
    for what, place in (("output", output), ("staging", settings.staging)):
        if source and place and holds(source, place):
            raise ConfigError(
                f"the {what} {place} lies inside the source {source}: the next run would read our own files as documents",
                place=place,
            )
    if settings.scheduler not in ("local", "serial") and not settings.shared_filesystem:
        for what, uri in (("source", source), ("output", output), ("staging", settings.staging)):
            if uri and local_path_of(uri) is not None:
                raise ConfigError(
                    f"the {what} {uri} is a local path, which workers of {settings.scheduler} may not see; "
                    "if they do (NFS, FSx for Lustre), give --shared-filesystem",
                )


def _check_folder(what: str, place: str | None) -> None:
    """Raise StoreError where a local folder cannot be, since a file is in its way; ConfigError for an impossible name."""
    path = None if place is None else local_path_of(place)
    if path is None:
        return
    if "\0" in path:
        raise ConfigError(f"the {what} {place!r} has a NUL byte in its name")
    above = os.path.abspath(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise StoreError(
            f"the {what} {place} cannot be a folder: {above} is a file. Choose another {what}, or move that file",
            uri=path,
        )


@contextmanager
def _starting_engine(settings: Settings, raw: RawTokenizer) -> Iterator[Callable[[], Engine]]:
    """Start the workers while the source is being listed; yield what waits for them; end them at the end."""
    if settings.scheduler == "serial":
        yield SerialEngine
        return
    with engine_thread(lambda is_over: _started_engine(settings, raw, is_over)) as engine_of:
        yield engine_of


def _started_engine(settings: Settings, raw: RawTokenizer, is_over: Callable[[], bool]) -> Engine:
    if settings.scheduler != "local":
        return DaskEngine(settings, is_over)
    with deaf_to_signals(), fork_server(raw.file, settings.tokenizer_backend):
        return DaskEngine(settings, is_over)


def _facts(settings: Settings, loaded: LoadedTokenizer, listed: Listed) -> dict[str, Any]:
    """Return what names the plan, beside the listing and the versions."""
    spec = loaded.spec
    ids = {
        "fingerprint": spec.fingerprint,
        "prefix": list(spec.prefix),
        "suffix": list(spec.suffix),
        "pad": spec.pad_id,
    }
    rejects = [list(map(str, reject)) for reject in listed.rejects]
    return {"settings": settings.content(), "tokenizer": ids, "kind": listed.kind, "rejects": rejects}


def _job(
    settings: Settings, loaded: LoadedTokenizer, listed: Listed, output: str, name: str, splits: Splits, plan: ScanPlan
) -> Job:
    batch = min(LARGEST_BATCH, max(SMALLEST_BATCH, STAGED_BYTES // max(1, plan.tasks)))
    return Job(
        settings=settings,
        spec=loaded.spec,
        backend=settings.tokenizer_backend,
        roots=tuple(listed.table.roots),
        staging=_staging_uri(settings, output, name),
        output=join(output, name),
        tokenizer=loaded.key,
        custom_tokenizer=loaded.custom,
        splits=splits,
        batch_bytes=batch,
        refs=listed.kind == "augmented",
    )


def _staging_uri(settings: Settings, output: str, name: str) -> str:
    return join(settings.staging, name) if settings.staging is not None else join(output, f"{name}/_staging")


def _sweep_staging(settings: Settings, output: str, name: str) -> None:
    uri = _staging_uri(settings, output, name)
    root, _, last = uri.rpartition("/")
    sweep_quietly(open_store(root, options=dict(settings.storage_options), kind=settings.store), last + "/")


def _work(run: _Run, page: Page | None) -> Built:
    """Scan, plan, write, check and publish."""
    reports = late.without_lost_objects(run.plan, _scan_all(run))
    run.job = replace(run.job, tags=tuple(report.tag for report in reports))
    tag = content_tag(run.job, run.staging, reports, versionless=without_version(run.plan.table) > 0)
    run.job = replace(run.job, content_tag=tag)
    _judge(run, reports)
    types = late.column_types(run.job, reports)
    dropped = late.find_and_drop(run.engine, run.job, run.plan, reports)
    clock = time.monotonic()
    settings = run.settings
    shard_plan = plan_shards(
        reports,
        split_names=run.splits.names,
        shard_bytes=settings.shard_bytes,
        shard_tokens=settings.shard_tokens,
        shards=settings.shards,
        multiple_of=settings.shards_multiple_of,
        edges=settings.bucket_edges,
        buckets=settings.buckets,
        pad_multiple=settings.pad_multiple,
        drops=dropped.histograms,
        bytes_per_token=BYTES_PER_TOKEN[settings.format],
    )
    run.timings["plan"] = time.monotonic() - clock
    infos = _write_all(run, reports, shard_plan, types, dropped)
    clock = time.monotonic()
    ledger = assemble.ledger_of(run.listed, reports, dropped, infos)
    ledger.check()
    warnings = assemble.warnings_of(dropped, giants(run.job, run.staging, shard_plan), ledger, run.listed)
    schema = assemble.shard_schema_of(run.job, types, shard_plan, run.splits.names[0])
    manifest = assemble.manifest_of(run.job, run.plan_id, shard_plan, schema, infos, ledger, dropped, warnings)
    manifest.check()
    _publish(run, manifest, _rejects(run, reports, dropped), page)
    run.timings["publish"] = time.monotonic() - clock
    return Built(
        manifest,
        run.output.uri,
        time.monotonic() - run.started,
        ", ".join(run.backends),
        fresh=True,
        notes=tuple(run.notes),
    )


def _scan_all(run: _Run) -> list[ScanReport]:
    """Return the report of every task, in order; the verdict on the fast backend comes in meanwhile."""
    clock = time.monotonic()
    verdict = _Verdict(run)
    why = ""
    try:
        reports = _scan_once(run)
    except TokenizerError as error:
        # On the first documents a difference is found out early enough to begin again; later it stops the job.
        if error.fields.get("kind") != "difference" or not error.fields.get("first") or run.job.backend != "auto":
            raise
        why, reports = error.message, []
    finally:
        verdict.wait()
    why = why or verdict.against
    if why:
        run.say(f"tokenizer: the reference backend is used: {why}")
        run.job = replace(run.job, backend="reference")
        reports = _scan_once(run)
    run.timings["scan"] = time.monotonic() - clock
    return reports


def _scan_once(run: _Run) -> list[ScanReport]:
    reports: dict[int, ScanReport] = {}
    culprits = Culprits()
    documents, began = 0, time.monotonic()
    total = int(run.plan.task_bytes.sum())
    known = tags_of(run.known)
    with Bar("scanning", total, "B", shown=run.settings.progress) as bar:

        def call(i: int) -> ScanCall:
            return ScanCall(run.job, run.plan.task(i), known=known.get(i, ()))

        for index, result in run.engine.run(scan, run.plan.tasks, call):
            report = result
            if isinstance(report, WorkerDied):
                report = scan_without_culprits(run.engine, call(index), culprits)
            reports[index] = report
            documents += report.documents
            rate = documents / max(time.monotonic() - began, 1e-3)
            bar.advance(int(run.plan.task_bytes[index]), documents=f"{documents:,}", rate=f"{rate:,.0f}/s")
    if culprits.count:
        run.notes.append(
            f"{culprits.count} documents ended their worker process and were set aside ({culprits.deaths} deaths)"
        )
    return [reports[index] for index in range(run.plan.tasks)]


class _Verdict:
    """Whether the fast backend reproduces the reference on the built-in probe: found out while the scan runs."""

    def __init__(self, run: _Run) -> None:
        self._verdict: Verdict | None = None
        self._run = run
        self._thread: threading.Thread | None = None
        if not run.tokenizer.custom and run.settings.tokenizer_backend != "reference":
            self._thread = threading.Thread(target=self._find_out, name="shardprep-verdict")
            self._thread.start()

    def _find_out(self) -> None:
        self._verdict = known_verdict(self._run.tokenizer.data, self._run.tokenizer.spec)

    def wait(self) -> None:
        """Wait for the probe's end."""
        if self._thread is not None:
            self._thread.join()

    @property
    def against(self) -> str:
        """Return why what was scanned may not be used; "" if it may. Raises TokenizerError where fast was insisted on."""
        if self._thread is None:
            return ""
        if self._verdict is None:
            return "the probe of the fast backend failed"
        if self._verdict.ok or not self._verdict.backend:
            return ""
        if self._run.settings.tokenizer_backend == "fast":
            raise TokenizerError(f"{self._verdict.why}. The way out: --tokenizer-backend reference")
        return self._verdict.why


def _judge_published(manifest: Manifest, settings: Settings) -> None:
    """Raise TooManyBad if the data set that is there already was made with more set aside than is allowed now."""
    ledger = manifest.ledger
    reasons = assemble.bad_of(ledger.set_aside)
    bad = sum(reasons.values())
    limit = 0 if settings.on_bad == "fail" else settings.max_bad_of(ledger.found)
    if limit is not None and bad > limit:
        named = assemble.in_numbers(reasons)
        raise TooManyBad(
            f"this data set is already built, with {bad:,} of {ledger.found:,} documents set aside ({named}), more than is "
            f"allowed now; see {manifest.plan}/rejects/",
            found=ledger.found,
            set_aside=reasons,
        )


def _judge(run: _Run, reports: list[ScanReport]) -> None:
    """Raise if too much was set aside, or everything. Repeats are no bad documents: they are found later, and not judged."""
    found = sum(report.found for report in reports) + len(run.listed.rejects)
    reasons: dict[str, int] = {}
    for counts in [*(report.set_aside for report in reports), assemble.listing_rejects(run.listed)]:
        for reason, count in counts.items():
            reasons[reason] = reasons.get(reason, 0) + count
    bad = sum(reasons.values())
    named = assemble.in_numbers(reasons)
    if run.settings.on_bad == "fail" and run.listed.rejects:
        name, reason, detail = run.listed.rejects[0]
        raise SourceError(f"{name}: {reason}: {detail}", key=name, reason=str(reason))
    limit = run.settings.max_bad_of(found)
    where = _first_reject(run, reports) if bad else ""
    if limit is not None and bad > limit:
        raise TooManyBad(
            f"{bad:,} of {found:,} documents were set aside, more than --max-bad {run.settings.max_bad}: {named}. {where}",
            found=found,
            set_aside=reasons,
        )
    if found and bad == found:
        raise SourceError(
            f"none of the {found:,} documents found could be used: {named}. {where} Are --text-field and --id-field right?",
            found=found,
            set_aside=reasons,
        )


def _first_reject(run: _Run, reports: list[ScanReport]) -> str:
    for line in assemble.with_listing_rejects(run.listed, _rejects(run, reports, late.Late())):
        value = orjson.loads(line)
        place = value["key"] if value["line"] is None else f"{value['key']}, line {value['line']}"
        return f"For example {place}: {value['reason']}: {value['detail']}."
    return ""


def _rejects(run: _Run, reports: list[ScanReport], dropped: late.Late) -> Iterator[bytes]:
    """Yield what the scans set aside, and what was left out later, as lines."""
    scanned = {report.task for report in reports if report.set_aside}
    return staged_rejects(run.job, run.staging, scanned, dropped.histograms, assemble.lines_before(run.plan, reports))


def _write_all(
    run: _Run, reports: list[ScanReport], shard_plan: ShardPlan, types: dict[str, str], dropped: late.Late
) -> list[ShardInfo]:
    """Return what was written, shard by shard in order."""
    clock = time.monotonic()
    shards = [(s, k) for s, split in enumerate(shard_plan.splits) for k in range(split.shards)]
    schemas = [
        assemble.shard_schema_of(run.job, types, shard_plan, name).serialize().to_pybytes() for name in run.splits.names
    ]
    staged = late.staged_digest(run.job.tags, dropped)
    run.backends = sorted({report.backend for report in reports} - {""})
    column_bytes = sum(report.column_bytes for report in reports)
    rows = sum(histogram.rows for report in reports for histogram in report.histograms)

    def call(place: int) -> WriteCall:
        split, number = shards[place]
        plan = shard_plan.splits[split]
        name = f"{plan.name}/{number:05d}-of-{plan.shards:05d}{run.job.suffix}{ENDINGS[run.settings.format]}"
        return WriteCall(
            job=run.job,
            split=split,
            name=name,
            ranges=plan.shard(number),
            buckets=shard_plan.buckets,
            schema=schemas[split],
            staged=staged,
            dropped=frozenset(dropped.histograms),
            known=side_of(name) in run.known,
            row_bytes=column_bytes // max(rows, 1),
        )

    infos: dict[int, ShardInfo] = {}
    with Bar("writing", sum(plan.tokens for plan in shard_plan.splits), "token", shown=run.settings.progress) as bar:
        for place, result in run.engine.run(write_shard, len(shards), call):
            info = result
            if isinstance(info, WorkerDied):
                raise WorkerError(
                    f"the worker that writes {call(place).name} dies: {info.detail}. Give workers more memory "
                    "(--memory-limit), or make smaller shards (--shard-size); the same command then continues"
                )
            infos[place] = info
            bar.advance(info.tokens)
    run.timings["write"] = time.monotonic() - clock
    return [infos[place] for place in range(len(shards))]


def _publish(run: _Run, manifest: Manifest, lines: Iterator[bytes], page: Page | None) -> None:
    """Put everything that goes with the data set, then the manifest, then sweep."""
    store, folder = run.output.store, run.plan_id
    ours = {name for shard in manifest.shards for name in (shard.name, *names_beside(shard.name))}
    for number, part in enumerate(parts(assemble.with_listing_rejects(run.listed, lines))):
        name = f"{folder}/rejects/part-{number:05d}{run.job.suffix}.jsonl"
        store.put(name, part)
        ours.add(name)
    store.put(f"{folder}/{run.tokenizer.key}", run.tokenizer.data)
    if page is not None:
        store.put(f"{folder}/report.html", page(manifest).encode())
    facts = {
        "host": platform.node(),
        "python": platform.python_version(),
        "versions": package_versions(),
        "workers": run.engine.workers,
        "scheduler": run.settings.scheduler,
        "tokenizer_backends": run.backends,
        "seconds": {**run.timings, "total": time.monotonic() - run.started},
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "notes": run.notes,
    }
    store.put(f"{folder}/build.json", orjson.dumps(facts, option=orjson.OPT_INDENT_2))
    beside = ("index",) * (run.settings.format == "recordio")
    folders = [f"{folder}/{name}/" for name in (*run.splits.names, *beside, "rejects")]
    leftovers = run.output.leftovers(folders, ours)
    run.output.publish(manifest.to_bytes(), run.settings)
    run.output.sweep_replaced(run.plan_id, leftovers)
    _sweep_staging(run.settings, run.output.uri, run.plan_id)
