"""The output: what stands there already, the one create-only put of the manifest, and what is swept afterwards."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardprep.core.manifest import Manifest, parse
from shardprep.core.plan import SourceTable
from shardprep.errors import Exists, ManifestConflict, ManifestError, NotFound, StoreError
from shardprep.prep.settings import Settings
from shardprep.prep.shard_files import names_beside
from shardprep.prep.tags import may_differ
from shardprep.storage.local import LocalStore
from shardprep.storage.store import Store, open_store

MANIFEST = "manifest.json"
PLAN = re.compile(r"[0-9a-f]{8}")  # a folder is only removed if its name is one that a plan can have


@dataclass(frozen=True)
class Output:
    """The output folder as it was at the start.

    existing   the manifest that stood there, with its bytes and its ETag; None where there was none
    """

    uri: str
    store: Store
    existing: Manifest | None
    existing_bytes: bytes
    etag: str

    @classmethod
    def open(cls, uri: str, settings: Settings) -> Output:
        """Look at the output. Raises ManifestError where a manifest stands that cannot be read."""
        store = open_store(
            uri,
            options=dict(settings.storage_options),
            kind=settings.store,
            unsafe_publish=settings.unsafe_publish,
        )
        store.check_publishable(replacing=False)
        try:
            _, etag = store.head(MANIFEST)
            data = store.get(MANIFEST)
        except NotFound:
            return cls(uri, store, None, b"", "")
        try:
            existing = parse(data)
        except ManifestError as error:
            if not settings.overwrite:
                raise ManifestError(
                    f"{join(uri, MANIFEST)} stands in the way and cannot be read: {error.message}"
                ) from error
            existing = None
        return cls(uri, store, existing, data, etag)

    def may_differ(self, table: SourceTable) -> bool:
        """Say whether what stands here could be another data set if its plan was built again."""
        return self.existing is not None and may_differ(self.existing, table)

    def refuse_conflict(self, plan: str, settings: Settings, table: SourceTable) -> None:
        """Raise ManifestConflict if another data set stands here and is not to be replaced."""
        if self.existing is not None and settings.overwrite and (self.existing.plan != plan or self.may_differ(table)):
            self.store.check_publishable(replacing=True)
        if self.existing is not None and self.existing.plan != plan and not settings.overwrite:
            raise ManifestConflict(
                f"{self.uri} already holds another data set (plan {self.existing.plan}, fingerprint "
                f"{self.existing.fingerprint[:12]}; this one is plan {plan}). Choose another output, or give --overwrite",
                uri=self.uri,
                existing=self.existing.plan,
                plan=plan,
            )

    def is_whole(self, plan: str) -> bool:
        """Say whether this very plan is published here, with every shard in place and of its size."""
        if self.existing is None or self.existing.plan != plan:
            return False
        sizes: dict[str, int] = {}
        for page in self.store.list(plan + "/"):
            sizes.update(zip(page.keys.to_pylist(), page.sizes.tolist(), strict=True))
        return all(
            sizes.get(shard.name) == shard.bytes and all(name in sizes for name in names_beside(shard.name))
            for shard in self.existing.shards
        )

    def publish(self, data: bytes, settings: Settings) -> None:
        """Put the manifest, last of all. The same bytes already there are success; others are a ManifestConflict."""
        try:
            if self.etag and (settings.overwrite or data == self.existing_bytes):
                if data != self.existing_bytes:
                    self.store.put_if_match(MANIFEST, data, self.etag)
            else:
                self.store.put_new(MANIFEST, data)
        except Exists as error:
            there = self.store.get(MANIFEST)
            if (
                there != data and there == self.existing_bytes
            ):  # its shards were lost, and the source is not what it was
                raise ManifestConflict(
                    f"{join(self.uri, MANIFEST)} is of the same plan, but objects that could not be read, or that have no "
                    "version, give other rows now. This job's data set is not published; --overwrite replaces the old one",
                    uri=self.uri,
                ) from error
            if there != data:
                raise ManifestConflict(
                    f"another job published {join(self.uri, MANIFEST)} meanwhile, with other content. "
                    "This job's data set is not published; look at what is there, then run again with another output "
                    "or --overwrite",
                    uri=self.uri,
                ) from error

    def leftovers(self, folders: Sequence[str], ours: Collection[str]) -> list[str]:
        """Return what lies in our own folders and is not ours: shards of a job that met other faults, and stopped.

        To be asked before publishing, and swept after it: from then on no job that wrote them can publish any more.
        """
        return [
            key
            for folder in folders
            for page in self.store.list(folder)
            for key in page.keys.to_pylist()
            if key not in ours
        ]

    def sweep_replaced(self, plan: str, leftovers: Sequence[str]) -> None:
        """Remove the data set that was replaced, the leftovers, and what writers that died left half written."""
        with suppress(StoreError):  # they harm nobody
            self.store.delete(leftovers)
        if self.existing is not None and self.existing.plan != plan and PLAN.fullmatch(self.existing.plan):
            sweep_quietly(self.store, self.existing.plan + "/")
        if isinstance(self.store, LocalStore):
            self.store.sweep(plan + "/")


def sweep(store: Store, prefix: str) -> None:
    """Delete everything under a prefix; on a local disk the folder too, with what a killed job left half written."""
    folder = store.local_path(prefix.rstrip("/"))
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for page in list(store.list(prefix)):
        store.delete(page.keys.to_pylist())


def sweep_quietly(store: Store, prefix: str) -> bool:
    """Sweep, and say whether it went well: leftovers harm nobody, and a published data set stays published."""
    try:
        sweep(store, prefix)
    except StoreError:
        return False
    return True


def join(uri: str, name: str) -> str:
    """Return a URI with a name behind it."""
    return f"{uri.rstrip('/')}/{name}"
