"""What a task needs to know, small enough to travel with every task, and what a worker process keeps between tasks."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cloudpickle

from shardprep.core.splits import Splits
from shardprep.formats.backends import Encoder, load_encoder
from shardprep.formats.fields import ColumnSpec, Fields
from shardprep.formats.tokenizer import TokenizerSpec
from shardprep.prep.settings import Settings
from shardprep.prep.stage import name_of
from shardprep.prep.warm import warm_engines
from shardprep.storage.store import Store, open_store


@dataclass(frozen=True)
class Job:
    """One build, as every task sees it; a few kilobytes.

    roots         URIs of the source's roots, in the order of SourceTable.roots
    staging       URI of the plan's staging folder; output, of the plan's folder
    tokenizer     name of the tokenizer's bytes in the staging folder
    batch_bytes   token bytes of one staged batch
    refs          documents may have their text behind a URI (augmented manifest)
    tags          what each task staged, by task; known when all are scanned
    content_tag   tells what was found from what another job of this plan may find; "" where the plan tells all
    """

    settings: Settings
    spec: TokenizerSpec
    backend: str
    roots: tuple[str, ...]
    staging: str
    output: str
    tokenizer: str
    custom_tokenizer: bool
    splits: Splits
    batch_bytes: int
    refs: bool
    tags: tuple[str, ...] = ()
    content_tag: str = ""

    def staged_name(self, task: int) -> str:
        """Return the name of what a task staged, without its ending."""
        return name_of(task, self.tags[task])

    def late_name(self, task: int) -> str:
        """Return the same for what is staged when all scans are in: it hangs on what other tasks found as well."""
        return self.staged_name(task) + self.suffix

    @property
    def suffix(self) -> str:
        """Return what names of shards and reject files end in, before their endings."""
        return f"-{self.content_tag}" if self.content_tag else ""

    @cached_property
    def fields(self) -> Fields:
        """Return the fields that documents are read with."""
        return fields_of(self.settings)


def fields_of(settings: Settings) -> Fields:
    """Return the fields that the settings name."""
    return Fields(
        text=settings.text_field,
        id=settings.id_field,
        columns=tuple(ColumnSpec.parse(column) for column in settings.columns),
        split_by=settings.split_by,
    )


class Worker:
    """The stores and the encoder of one process, made when first needed, kept for the tasks that follow."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._stores: dict[str, Store] = {}

    def store(self, uri: str) -> Store:
        """Return the store of a root, opened once in this process."""
        if uri not in self._stores:
            options = dict(self.job.settings.storage_options)
            self._stores[uri] = open_store(uri, options=options, kind=self.job.settings.store)
        return self._stores[uri]

    @property
    def staging(self) -> Store:
        """Return the store of the staging folder."""
        return self.store(self.job.staging)

    @property
    def output(self) -> Store:
        """Return the store of the plan's folder."""
        return self.store(self.job.output)

    def stage(self, files: Mapping[str, Any]) -> None:
        """Put files into the staging folder, all at once where a request has to travel."""
        store = self.staging
        if store.requests_in_flight == 1 or len(files) == 1:
            for name, data in files.items():
                store.put(name, data, durable=False)
            return
        with ThreadPoolExecutor(len(files)) as pool:
            for put in [pool.submit(store.put, name, data, durable=False) for name, data in files.items()]:
                put.result()

    @cached_property
    def encoder(self) -> Encoder:
        """Return the encoder: of the engines that the process was forked with, or loaded from staging, once per process."""
        job = self.job
        warm = warm_engines(job.spec.fingerprint)
        if warm is not None and not job.custom_tokenizer and not job.spec.literal and not job.spec.sampling:
            fast, reference = warm
            if job.backend == "reference":
                return Encoder(reference, job.spec)
            if fast is not None:
                return Encoder(fast, job.spec, reference=lambda: reference)
        data: Any = self.staging.get(job.tokenizer)
        if job.custom_tokenizer:
            data = cloudpickle.loads(data)
        return load_encoder(data, job.spec, job.backend)


_kept: dict[Any, Worker] = {}


def worker_of(job: Job) -> Worker:
    """Return this process's worker for a job; another job takes its place."""
    key = (job.staging, job.output, job.spec.fingerprint, job.backend, job.roots, job.settings)
    if key not in _kept:
        _kept.clear()
        _kept[key] = Worker(job)
    return _kept[key]
