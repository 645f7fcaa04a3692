"""Texts that lie behind a URI: the `source-ref` of an augmented manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardprep.errors import StoreError
from shardprep.formats.documents import Document, Reason
from shardprep.prep.job import Worker
from shardprep.storage.fetch import Item, fetch
from shardprep.storage.store import split_uri


def texts_of(worker: Worker, documents: Iterable[Document]) -> Iterator[tuple[Document, str | tuple[Reason, str]]]:
    """Yield each document with its text, or with the reason why it has none; many texts are fetched at once."""
    documents = list(documents)
    texts: dict[int, str | tuple[Reason, str]] = {}
    by_root: dict[str, list[tuple[int, str]]] = {}
    for place, document in enumerate(documents):
        if document.ref is not None:
            root, key = split_uri(document.ref)
            by_root.setdefault(root, []).append((place, key))
    for root, wanted in by_root.items():
        items = (Item(key, 0, "") for _, key in wanted)
        for (place, _), (_, data) in zip(wanted, fetch(worker.store(root), items, limit=worker.limit), strict=True):
            texts[place] = _text(documents[place].ref or "", data, worker.job.settings.max_object_bytes)
    for place, document in enumerate(documents):
        yield document, texts.get(place, document.text)


def _text(uri: str, data: bytes | StoreError, limit: int) -> str | tuple[Reason, str]:
    if isinstance(data, StoreError):
        return Reason.UNREADABLE_OBJECT, f"source-ref {uri}: {data.message}"
    if len(data) > limit:
        return Reason.TOO_LARGE, f"source-ref {uri}: {len(data)} bytes"
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as error:
        return Reason.INVALID_UTF8, f"source-ref {uri}: {error}"
    return text or (Reason.EMPTY_TEXT, f"source-ref {uri}: the object is empty")
