"""One scan task: fetch objects, parse, set bad documents aside, tokenize, and stage the rows sorted by length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core import overflow
from shardprep.core.block import TokenBlock, offsets_of
from shardprep.core.plan import LengthHistogram, ObjectRef, ScanReport, ScanTask
from shardprep.core.splits import split_of
from shardprep.errors import (
    SourceError,
    StoreError,
    TokenizerError,
    TypeConflict,
    Unavailable,
)
from shardprep.formats.columns import columns_to_arrow, merge_types
from shardprep.formats.documents import Document, DocumentParser, Parsed, Reason, Reject, is_lines
from shardprep.formats.reasons import FAULTS, Refused
from shardprep.prep.hashes import Place, hash_table
from shardprep.prep.job import Job, Worker, worker_of
from shardprep.prep.references import storage_reason, texts_of
from shardprep.prep.rejects import reject_line
from shardprep.prep.stage import DOCUMENT, PIECE, Staged, load_staged, name_of, stage_rows, tag_of
from shardprep.prep.tags import REFERENCES
from shardprep.storage.fetch import Item, check_reachable, fetch, is_of_credentials

ENCODE_DOCUMENTS = 512  # documents tokenized at once; building-blocks: 200 to 1,000 are even
ENCODE_CHARS = 4_000_000
HEAD_BYTES = 65_536


@dataclass(frozen=True)
class ScanCall:
    """A scan of one task.

    known   tags under which earlier runs staged this task
    skip    object name -> records not to be read (None: the whole object): they killed their worker
    only    records start to stop of the task's single object, and nothing is staged: the search for such a record
    """

    job: Job
    task: ScanTask
    known: tuple[str, ...] = ()
    skip: Mapping[str, frozenset[int] | None] = field(default_factory=dict)
    only: tuple[int, int] | None = None
    dry: bool = False


def scan(call: ScanCall) -> ScanReport:
    """Return the report of a task, staged; a task that an earlier run staged is only checked."""
    worker = worker_of(call.job)
    for tag in () if call.dry else call.known:
        staged = load_staged(worker.staging, call.task.index, tag, check=True)
        if staged is not None and _trusted(staged, call):
            return staged.report
    collector = _Collector(call, worker)
    for ref, parsed in _parsed(call, worker, collector.parser):
        collector.add(ref, parsed)
    return collector.finish()


def _trusted(staged: Staged, call: ScanCall) -> bool:
    """Say whether what an earlier run staged may be used.

    Not if an object could not be read then: it may be now. Not if documents were set aside and the job is to stop at the
    first one. Not if it came from a fast backend that is not to be used. And with --overwrite not if nobody can tell
    whether the source has changed.
    """
    report, settings = staged.report, call.job.settings
    if settings.on_bad == "fail" and report.set_aside:
        return False
    if any(reason in report.set_aside for reason in FAULTS if reason != Reason.WORKER_DIED):
        return False
    if settings.overwrite and (report.objects.get(REFERENCES) or not all(ref.etag for ref in call.task.objects)):
        return False
    return not report.backend.startswith("fast") or call.job.backend != "reference"


def _parsed(call: ScanCall, worker: Worker, parser: DocumentParser) -> Iterator[tuple[ObjectRef, Parsed]]:
    """Yield what each object of the task holds, in the order of the task."""
    if call.task.byte_range is not None:
        yield call.task.objects[0], _parsed_range(call, worker, parser)
        return
    for root in sorted({ref.root for ref in call.task.objects}):
        refs = [ref for ref in call.task.objects if ref.root == root]
        yield from _parsed_objects(call, worker, parser, refs)


def _parsed_objects(
    call: ScanCall, worker: Worker, parser: DocumentParser, refs: list[ObjectRef]
) -> Iterator[tuple[ObjectRef, Parsed]]:
    limit = call.job.settings.max_object_bytes
    store = worker.store(call.job.roots[refs[0].root])
    wanted = [ref for ref in refs if ref.size_bytes <= limit and call.skip.get(ref.name, frozenset()) is not None]
    fetched = fetch(store, (Item(ref.key, ref.size_bytes, ref.etag) for ref in wanted))
    for ref in refs:
        if call.skip.get(ref.name, frozenset()) is None:
            yield ref, _whole_reject(Reason.WORKER_DIED, "reading this object ended the worker process")
        elif ref.size_bytes > limit:
            detail = f"{ref.size_bytes} bytes, more than --max-object-size {call.job.settings.max_object_size}"
            yield ref, _whole_reject(Reason.TOO_LARGE, detail)
        else:
            _, data = next(fetched)
            if isinstance(data, StoreError):
                yield ref, _whole_reject(storage_reason(data), data.message)
            else:
                yield ref, parser.parse_object(ref.name, data)


def _whole_reject(reason: Reason, detail: str) -> Parsed:
    return Parsed([], [Reject(None, 0, reason, detail, b"")], 1, 0)


def _parsed_range(call: ScanCall, worker: Worker, parser: DocumentParser) -> Parsed:
    """Return the documents whose lines begin inside the task's byte range.

    An object that does not hold lines is read whole by its first range; the others find nothing.
    """
    assert call.task.byte_range is not None
    start, stop = call.task.byte_range
    ref = call.task.objects[0]
    if call.skip.get(ref.name, frozenset()) is None:
        return _whole_reject(Reason.WORKER_DIED, "reading this object ended the worker process")
    store = worker.store(call.job.roots[ref.root])
    source = _Ranged(store, ref)
    try:
        if not _holds_lines(source, ref.size_bytes, shortest_range(ref.size_bytes, stop - start)):
            if start > 0:
                return Parsed([], [], 0, 0)
            if ref.size_bytes > call.job.settings.max_object_bytes:
                limit = call.job.settings.max_object_size
                return _whole_reject(
                    Reason.TOO_LARGE, f"{ref.size_bytes} bytes, not JSON lines, more than --max-object-size {limit}"
                )
            return parser.parse_object(ref.name, source.read(0, ref.size_bytes))
        data, first, giant = _whole_lines(source, start, stop, ref.size_bytes, call.job.settings.max_object_bytes)
    except StoreError as error:
        if is_of_credentials(error):
            raise
        if isinstance(error, Unavailable):
            check_reachable(store, error, 0)
        return _whole_reject(storage_reason(error), error.message)
    parsed = parser.parse_lines(ref.name, data, first)
    if giant is None:
        return parsed
    detail = f"a line of more than {call.job.settings.max_object_bytes} bytes, the most that --max-object-size allows"
    reject = Reject(parsed.lines + 1, giant, Reason.TOO_LARGE, detail, b"")
    return Parsed(parsed.documents, [*parsed.rejects, reject], parsed.found + 1, parsed.lines + 1)


@dataclass(frozen=True)
class _Ranged:
    store: Any
    ref: ObjectRef

    def read(self, start: int, stop: int) -> bytes:
        data: bytes = self.store.get_range(
            self.ref.key, start, stop, etag=self.ref.etag, size_bytes=self.ref.size_bytes
        )
        return data


def shortest_range(size: int, length: int) -> int:
    """Return the length of the shortest range of an object, from that of any of them.

    Ranges of one object differ by a byte. What is decided from the head must not depend on which of them asks: one that
    took it for lines and one that took it whole would write its documents twice.
    """
    return size // max(1, round(size / length))


def _holds_lines(source: _Ranged, size: int, most: int) -> bool:
    """Say whether a large object holds JSON lines, from its head: the same answer for each of its ranges."""
    head_bytes = HEAD_BYTES
    while True:
        head = source.read(0, min(head_bytes, size))
        answer = is_lines(head, complete=len(head) >= size)
        if answer is not None:
            return answer
        if head_bytes >= most:  # not one line end in a whole range: not lines that ranges could be cut at
            return False
        head_bytes = min(head_bytes * 8, most)


def _whole_lines(source: _Ranged, start: int, stop: int, size: int, most: int) -> tuple[bytes, int, int | None]:
    """Return the lines that begin in [start, stop), whole, and the byte where the first of them begins.

    If the last of them goes on beyond `most` bytes it is not read on and left out: third is the byte where it begins.
    """
    data = source.read(max(0, start - 1), stop)
    first = start
    if start > 0:  # the byte before tells whether a line begins right here
        end = data.find(b"\n")
        if end < 0:
            return b"", start, None
        first, data = start + end, data[end + 1 :]
    last = data.rfind(b"\n") + 1  # where the line begins that goes on beyond the range
    pieces, end, step = [data], stop, HEAD_BYTES
    while data and end < size and not pieces[-1].endswith(b"\n"):
        length = end - first - last
        if length > most:
            return data[:last], first, first + last
        piece = source.read(end, min(size, end + min(step, most + 1 - length)))
        cut = piece.find(b"\n")
        pieces.append(piece if cut < 0 else piece[: cut + 1])
        end, step = end + len(piece), step * 2
        if cut >= 0:
            break
    return b"".join(pieces), first, None


class _Collector:
    """Gathers a task's documents, tokenizes them in batches, and stages them at the end."""

    def __init__(self, call: ScanCall, worker: Worker) -> None:
        self._call = call
        self._job = call.job
        self._worker = worker
        settings = call.job.settings
        self.parser = DocumentParser(
            call.job.fields, max_object_bytes=settings.max_object_bytes, source_ref=call.job.refs
        )
        self._waiting: list[Document] = []
        self._waiting_chars = 0
        self._flat: list[NDArray[np.int32]] = []
        self._lengths: list[NDArray[np.int64]] = []
        self._owners: list[NDArray[np.int64]] = []  # document number of each row
        self._pieces: list[NDArray[np.int64]] = []
        self._ids: list[str] = []
        self._groups: list[str] = []
        self._columns: list[tuple[object, ...]] = []
        self._places: list[Place] = []  # of each document
        self._hashes: list[bytes] = []
        self._rejects: list[bytes] = []
        self._refs: list[ObjectRef] = []  # object of each waiting document
        self._set_aside: dict[str, int] = {}
        self._objects = {"read": 0, "empty": 0, "bytes": 0}
        self._found = self._documents = self._line_feeds = 0
        self._tokens_cut = self._documents_cut = 0

    def add(self, ref: ObjectRef, parsed: Parsed) -> None:
        """Take what one object, or one range of it, holds."""
        if self._call.task.byte_range is None or self._call.task.byte_range[0] == 0:
            self._objects["read"] += 1
            self._objects["empty"] += int(parsed.found == 0)
            self._objects["bytes"] += ref.size_bytes
        if self._call.task.byte_range is not None:
            self._line_feeds += parsed.lines
            self._objects["lost"] = int(any(r.reason in FAULTS and r.line is None for r in parsed.rejects))
        self._found += parsed.found
        for reject in parsed.rejects:
            self._reject(ref, reject)
        documents = parsed.documents
        if self._call.only is not None:
            documents = documents[self._call.only[0] : self._call.only[1]]
        skip = self._call.skip.get(ref.name)
        if skip:
            for number in sorted(skip):
                gone, detail = documents[number], "tokenizing this document ended the worker process"
                self._reject(ref, Reject(gone.line, gone.offset, Reason.WORKER_DIED, detail, b""))
            documents = [d for number, d in enumerate(documents) if number not in skip]
        for document in self._resolved(ref, documents) if self._job.refs else documents:
            self._waiting.append(document)
            self._refs.append(ref)
            self._waiting_chars += len(document.text)
            if len(self._waiting) >= ENCODE_DOCUMENTS or self._waiting_chars >= ENCODE_CHARS:
                self._encode()

    def _resolved(self, ref: ObjectRef, documents: list[Document]) -> Iterator[Document]:
        """Yield the documents with their texts; where a text lies behind a URI it is fetched."""
        behind = sum(document.ref is not None for document in documents)
        if behind:
            self._objects[REFERENCES] = self._objects.get(REFERENCES, 0) + behind
        for document, text in texts_of(self._worker, self.parser, documents):
            if isinstance(text, Refused):
                self._reject(ref, Reject(document.line, document.offset, text.reason, text.detail, b""))
            else:
                yield replace(document, text=text)

    def _reject(self, ref: ObjectRef, reject: Reject) -> None:
        if self._job.settings.on_bad == "fail" and not self._call.dry:
            raise self._failure(ref, reject)
        self._set_aside[str(reject.reason)] = self._set_aside.get(str(reject.reason), 0) + 1
        self._rejects.append(reject_line(ref.name, reject))

    def _failure(self, ref: ObjectRef, reject: Reject) -> SourceError:
        line = reject.line
        if line is not None and self._call.task.byte_range is not None:
            store = self._worker.store(self._job.roots[ref.root])
            line = _line_of(_Ranged(store, ref), reject.offset)
        place = ref.name if line is None else f"{ref.name}, line {line}"
        message = f"{place}: {reject.reason}: {reject.detail} (--on-bad set-aside would go on without it)"
        return SourceError(message, key=ref.name, line=line, reason=str(reject.reason))

    def _encode(self) -> None:
        """Tokenize the waiting documents and keep their rows."""
        parts = [(self._waiting, self._refs)]
        self._waiting, self._refs, self._waiting_chars = [], [], 0
        while parts:
            documents, refs = parts.pop()
            if not documents:
                continue
            try:
                ids, offsets = self._worker.encoder.encode([document.text for document in documents])
            except TokenizerError as error:
                place = self._blame(error, documents, refs)
                parts += [(documents[place + 1 :], refs[place + 1 :]), (documents[:place], refs[:place])]
            else:
                self._take(documents, refs, ids, offsets)

    def _blame(self, error: TokenizerError, documents: list[Document], refs: list[ObjectRef]) -> int:
        """Set aside the document that no backend can encode, and return its place; any other error is raised."""
        if "index" not in error.fields:  # the tokenizer itself, whatever the text
            raise error
        place = int(error.fields["index"])
        document, ref = documents[place], refs[place]
        if error.fields.get("kind") != "document":  # a backend that gives other ids: the job stops
            raise TokenizerError(f"{ref.name}, id {document.id}: {error.message}", **error.fields) from error
        self._reject(ref, Reject(document.line, document.offset, Reason.NOT_TOKENIZABLE, error.message, b""))
        return place

    def _take(
        self, documents: list[Document], refs: list[ObjectRef], ids: NDArray[np.int32], offsets: NDArray[np.int64]
    ) -> None:
        """Keep the rows of tokenized documents, cut or set aside where they are too long."""
        kept = np.ones(len(documents), dtype=bool)
        lengths = np.diff(offsets)
        owners = np.arange(len(documents), dtype=np.int64)
        pieces, cut = np.zeros(len(documents), dtype=np.int64), np.zeros(len(documents), dtype=np.int64)
        longest = self._job.settings.max_length
        if longest is not None and (lengths > longest).any():
            mode = self._job.settings.overflow
            if mode == "truncate":
                ids, offsets, cut = overflow.truncate(ids, offsets, longest, len(self._job.spec.suffix))
                self._tokens_cut += int(cut.sum())
                self._documents_cut += int((cut > 0).sum())
            elif mode == "split":
                ids, offsets, owners, pieces = overflow.split(ids, offsets, longest)
            else:
                kept = lengths <= longest
                for number in np.flatnonzero(~kept):
                    document, ref = documents[number], refs[number]
                    detail = f"{lengths[number]} tokens, more than --max-length {longest}"
                    self._reject(ref, Reject(document.line, document.offset, Reason.TOO_LONG, detail, b""))
        places = zip(refs, documents, cut.tolist(), kept.tolist(), strict=True)
        self._places += [(ref.number, d.offset, d.line, lost) for ref, d, lost, keep in places if keep]
        self._keep(documents, kept, ids, offsets, owners, pieces)

    def _keep(
        self,
        documents: list[Document],
        kept: NDArray[np.bool_],
        ids: NDArray[np.int32],
        offsets: NDArray[np.int64],
        owners: NDArray[np.int64],
        pieces: NDArray[np.int64],
    ) -> None:
        lengths = np.diff(offsets)
        if not kept.all():
            rows = np.repeat(kept[owners], lengths)
            ids, lengths, pieces = ids[rows], lengths[kept[owners]], pieces[kept[owners]]
            owners = (np.cumsum(kept) - 1)[owners[kept[owners]]]
            documents = [d for d, k in zip(documents, kept, strict=True) if k]
        self._flat.append(ids)
        self._lengths.append(lengths)
        self._owners.append(owners + self._documents)
        self._pieces.append(pieces)
        self._documents += len(documents)
        self._ids += [document.id for document in documents]
        self._columns += [document.columns for document in documents]
        if self._job.settings.split_by is not None:
            self._groups += [document.group or "" for document in documents]
        if "texts" in self._job.settings.hashed:
            blake = hashlib.blake2b
            self._hashes += [blake(d.text.encode(), digest_size=16).digest() for d in documents]

    def finish(self) -> ScanReport:
        """Tokenize what is left, sort, stage, and return the report."""
        self._encode()
        settings, job = self._job.settings, self._job
        flat = np.concatenate(self._flat) if self._flat else np.zeros(0, dtype=np.int32)
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *self._lengths])
        owners = np.concatenate([np.zeros(0, dtype=np.int64), *self._owners])
        pieces = np.concatenate([np.zeros(0, dtype=np.int64), *self._pieces])
        self._flat, self._lengths = [], []
        by_document = split_of(self._groups if settings.split_by is not None else self._ids, job.splits).astype(np.int8)
        splits = by_document[owners]
        columns, types = self._batch_of_columns(owners, pieces)
        order = np.lexsort((lengths, splits))
        block = TokenBlock(flat, offsets_of(lengths), columns).take(order)
        del flat
        splits = splits[order]
        report = ScanReport(
            task=self._call.task.index,
            histograms=tuple(_histogram(block.lengths[splits == s]) for s in range(len(job.splits.names))),
            found=self._found,
            set_aside=self._set_aside,
            tokens_cut=self._tokens_cut,
            documents_cut=self._documents_cut,
            documents=self._documents,
            column_bytes=sum(column.nbytes for column in columns.columns),
            column_types=types,
            objects=self._objects,
            line_feeds=self._line_feeds,
            backend=self._worker.encoder.backend if self._documents else "",
        )
        return report if self._call.dry else self._stage(report, block, splits, by_document)

    def _batch_of_columns(
        self, owners: NDArray[np.int64], pieces: NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, dict[str, dict[str, str]]]:
        """Return id and columns of each row, typed as far as this task can tell, and the types it saw."""
        specs, seen = self._job.fields.columns, self.parser.column_types
        types = {spec.name: "string" for spec in specs}
        try:
            types |= merge_types([seen])
        except TypeConflict:  # the driver says so, with the places of all tasks; nothing of this will be written
            self._columns = [(None,) * len(specs)] * self._documents
        arrays = columns_to_arrow(specs, types, self._columns)
        fields = [pa.field("id", pa.string(), nullable=False)]
        values: list[pa.Array] = [pa.array(self._ids, pa.string())]
        for spec, array in zip(specs, arrays, strict=True):
            fields.append(pa.field(spec.name, array.type))
            values.append(array)
        if self._job.settings.overflow == "split" or self._job.settings.hashed:
            rows = pa.array(owners)
            values = [value.take(rows) for value in values]
        if self._job.settings.overflow == "split":
            fields.append(pa.field(PIECE, pa.int32(), nullable=False))
            values.append(pa.array(pieces.astype(np.int32)))
        if self._job.settings.hashed:
            fields.append(pa.field(DOCUMENT, pa.int32(), nullable=False))
            values.append(pa.array(owners.astype(np.int32)))
        return pa.RecordBatch.from_arrays(values, schema=pa.schema(fields)), seen

    def _stage(
        self, report: ScanReport, block: TokenBlock, splits: NDArray[np.int8], by_document: NDArray[np.int8]
    ) -> ScanReport:
        """Put the task's files, and after them the sidecar that makes them count; return the report with their tag."""
        data, schema, batches = stage_rows(block, splits, self._job.batch_bytes)
        others: dict[str, Any] = {f".{kind}": self._hash_table(kind, by_document) for kind in self._job.settings.hashed}
        if self._rejects:
            others[".rejects.jsonl"] = b"".join(self._rejects)
        staged = Staged(
            report=report,
            sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
            schema=schema,
            batches=batches,
            others={other: hashlib.sha256(content).hexdigest() for other, content in others.items()},
        )
        sidecar = staged.to_bytes()
        report = replace(report, tag=tag_of(sidecar))
        name = name_of(report.task, report.tag)
        self._worker.stage({name + ending: content for ending, content in {**others, ".arrow": data}.items()})
        self._worker.stage({name + ".json": sidecar})
        return report

    def _hash_table(self, kind: str, by_document: NDArray[np.int8]) -> bytes:
        """Return who has which text, or which id, as a staged table."""
        hashes = self._hashes
        if kind == "ids":
            hashes = [hashlib.blake2b(i.encode(), digest_size=16).digest() for i in self._ids]
        return hash_table(hashes, self._places, by_document)


def _histogram(lengths: NDArray[np.int64]) -> LengthHistogram:
    distinct, counts = np.unique(lengths, return_counts=True)
    return LengthHistogram(distinct, counts.astype(np.int64))


def _line_of(source: _Ranged, offset: int) -> int:
    """Return the physical line, from 1, at a byte offset of an object: only asked for when the job is to stop there."""
    count, place, step = 1, 0, 8 << 20
    while place < offset:
        piece = source.read(place, min(offset, place + step))
        count += piece.count(b"\n")
        place += len(piece)
    return count
