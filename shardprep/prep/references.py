"""Texts that lie behind a URI: the `source-ref` of an augmented manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardprep.errors import Changed, ConfigError, Denied, NotFound, StoreError
from shardprep.formats.documents import Document, DocumentParser
from shardprep.formats.reasons import Reason, Refused
from shardprep.prep.job import Worker
from shardprep.storage.fetch import Item, fetch
from shardprep.storage.local_files import key_of_path
from shardprep.storage.store import local_path_of, split_uri


def texts_of(
    worker: Worker, parser: DocumentParser, documents: Sequence[Document]
) -> Iterator[tuple[Document, str | Refused]]:
    """Yield each document with its text, or with the reason why it has none; many texts are fetched at once."""
    texts: dict[int, str | Refused] = {}
    by_root: dict[str, list[tuple[int, str]]] = {}
    for place, document in enumerate(documents):
        if document.ref is not None:
            if "\0" in document.ref:
                texts[place] = Refused(Reason.UNUSABLE_KEY, f"source-ref {document.ref!r}: a NUL byte is in it")
                continue
            try:
                root, key = split_uri(document.ref)
            except ConfigError as error:
                texts[place] = Refused(Reason.UNUSABLE_KEY, f"source-ref {document.ref}: {error.message}")
                continue
            path = local_path_of(document.ref)
            if path is not None:  # the root is the folder as it is, the key a name
                key = key_of_path(path).rpartition("/")[2]
            by_root.setdefault(root, []).append((place, key))
    for root, wanted in by_root.items():
        try:
            store = worker.store(root)
        except ConfigError as error:  # the document's fault: the call does not name this place
            for place, _ in wanted:
                texts[place] = Refused(Reason.UNUSABLE_KEY, f"source-ref {documents[place].ref}: {error.message}")
            continue
        items = (Item(key, None) for _, key in wanted)
        for (place, _), (_, data) in zip(wanted, fetch(store, items), strict=True):
            texts[place] = _text(parser, documents[place].ref or "", data)
    for place, document in enumerate(documents):
        yield document, texts.get(place, document.text)


def _text(parser: DocumentParser, uri: str, data: bytes | StoreError) -> str | Refused:
    if isinstance(data, StoreError):
        return Refused(storage_reason(data), f"source-ref {uri}: {data.message}")
    try:
        text = parser.text_behind(data)
    except Refused as why:
        return Refused(why.reason, f"source-ref {uri}: {why.detail}")
    return text or Refused(Reason.EMPTY_TEXT, f"source-ref {uri}: the text is empty")


def storage_reason(error: StoreError) -> Reason:
    """Return the reason code of an object that could not be read."""
    if isinstance(error, Changed):
        return Reason.OBJECT_CHANGED
    if isinstance(error, NotFound):
        return Reason.MISSING_OBJECT
    return Reason.ACCESS_DENIED if isinstance(error, Denied) else Reason.UNREADABLE_OBJECT
