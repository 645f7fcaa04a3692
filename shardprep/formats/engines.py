"""What turns texts into plain ids: the reference, the fast engines, a user's own object.

The reference is Hugging Face `tokenizers`; the fast ones are fastokens (BPE) and nanotoken (WordPiece), read from
the same tokenizer.json. All run in one thread: there is one worker process per core.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardprep.core.block import offsets_of
from shardprep.errors import TokenizerError
from shardprep.formats.environment import in_environment
from shardprep.formats.tokenizer import Tokenizer
from shardprep.formats.tokenizer_file import load, set_plain

Ragged = tuple[NDArray[np.int32], NDArray[np.int64]]

FASTOKENS_FLOOR = (0, 3, 5)  # before, long documents of the o200k split differed: crusoecloud/fastokens issue 67
THREAD_COUNTS = ("RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS")  # fastokens reads them once, at its first call
_ENVIRONMENT = threading.Lock()
PIECE_CHARS = 1 << 20  # of text in one call of the reference, which holds some 60 bytes a token until it returns


class Engine(Protocol):
    """What turns texts into plain ids: no template, no end token."""

    name: str

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        """Return flat ids int32 (tokens,) and offsets int64 (texts + 1,)."""
        ...


class Unusable(Exception):
    """A fast engine that cannot serve this tokenizer; the text says why."""


class Reference:
    """Hugging Face tokenizers."""

    name = "reference"

    def __init__(self, text: str) -> None:
        # Its threads would fight with the other workers', and must not exist when a user's process forks.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer = set_plain(load(text))

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        """Return flat ids and offsets; a bounded number of characters at a time, so that memory stays bounded."""
        rows: list[NDArray[np.int32]] = []
        for part in _parts(texts):
            encodings = self._tokenizer.encode_batch_fast(part, add_special_tokens=False)
            rows += [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        return joined(rows)


class Fastokens:
    """fastokens: BPE, byte-level or SentencePiece-like."""

    name = "fast:fastokens"

    def __init__(self, text: str) -> None:
        module = _module("fastokens")
        if _release("fastokens") < FASTOKENS_FLOOR:
            raise Unusable(f"fastokens {version('fastokens')} is too old: pip install -U shardprep[fast]")
        with _one_thread():
            self._tokenizer: Any = _loaded("fastokens", lambda: module.Tokenizer.from_json_str(text))
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self.encode_batch(["a", "b"])  # makes its thread pool, which stays as large as it is now

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        """Return flat ids and offsets."""
        ids, offsets = self._tokenizer.encode_batch_flat(
            list(texts), add_special_tokens=False, split_special_tokens=True
        )
        return np.frombuffer(ids, dtype="<u4").view(np.int32), np.frombuffer(offsets, dtype="<u8").astype(np.int64)


class Nanotoken:
    """nanotoken: WordPiece. It knows special tokens in texts only as ids: those texts go to the reference."""

    name = "fast:nanotoken"

    def __init__(self, text: str, reference: Callable[[], Engine]) -> None:
        module = _module("nanotoken.nanotoken_rs")
        self._tokenizer: Any = _loaded("nanotoken", lambda: module.WordPieceTokenizer.from_json(text))
        special = [token for token in json.loads(text).get("added_tokens") or [] if token["special"]]
        if any(token.get("normalized") for token in special):
            # it would be found in changed spellings too, "[cls]", and which those are is the normalizer's secret
            raise Unusable("nanotoken: a special token that is looked for in normalized text cannot be kept as text")
        self._special = tuple(token["content"] for token in special)
        self._reference = reference

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        """Return flat ids and offsets."""
        literal = [i for i, text in enumerate(texts) if any(special in text for special in self._special)]
        if not literal:
            return self._encode(list(texts))
        ids, offsets = self._encode(["" if i in set(literal) else text for i, text in enumerate(texts)])
        more, bounds = self._reference().encode_batch([texts[i] for i in literal])
        rows = [ids[offsets[i] : offsets[i + 1]] for i in range(len(texts))]
        for place, i in enumerate(literal):
            rows[i] = more[bounds[place] : bounds[place + 1]]
        return joined(rows)

    def _encode(self, texts: list[str]) -> Ragged:
        ids, offsets = self._tokenizer.encode_batch(texts, add_special_tokens=False, parallel=False)
        return np.asarray(ids).view(np.int32), np.asarray(offsets, dtype=np.int64)


class Custom:
    """A user's tokenizer object. What it returns is checked, since everything downstream trusts it."""

    name = "custom"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        """Return flat ids and offsets. Raises TokenizerError where the object returned something else."""
        ids, offsets = self._tokenizer.encode_batch(texts)
        ids, offsets = np.asarray(ids), np.asarray(offsets)
        kind, size = type(self._tokenizer).__name__, self._tokenizer.vocab_size
        shaped = ids.ndim == 1 and offsets.shape == (len(texts) + 1,) and offsets.dtype.kind in "iu"
        if not shaped or offsets[0] != 0 or offsets[-1] != len(ids) or (offsets[1:] < offsets[:-1]).any():
            raise TokenizerError(
                f"tokenizer {kind}: encode_batch must return flat ids and rising offsets (texts + 1,) from 0 to their "
                f"number; got ids {ids.shape} and offsets {offsets.shape} for {len(texts)} texts",
                kind="tokenizer",
            )
        if len(ids) and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= size):
            raise TokenizerError(
                f"tokenizer {kind}: ids must be integers from 0 to {size - 1} (its vocab_size is {size}); "
                f"got {ids.dtype} from {ids.min()} to {ids.max()}",
                kind="tokenizer",
            )
        return ids.astype(np.int32, copy=False), offsets.astype(np.int64, copy=False)


def fast_engine(text: str, reference: Callable[[], Engine]) -> Engine:
    """Return the fast engine for a tokenizer.json. Raises Unusable, which says why there is none."""
    reasons = []
    for make in (lambda: Fastokens(text), lambda: Nanotoken(text, reference)):
        try:
            return make()
        except Unusable as error:
            reasons.append(str(error))
    missing = [reason for reason in reasons if reason.endswith("not installed")]
    if len(missing) == len(reasons):
        raise Unusable("fast backend not installed: pip install shardprep[fast]")
    raise Unusable("; ".join(reasons) + (" (pip install shardprep[fast])" if missing else ""))


def joined(rows: Sequence[NDArray[np.int32]]) -> Ragged:
    """Return the rows as flat ids and offsets."""
    offsets = offsets_of(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int32), offsets


def versions() -> dict[str, str]:
    """Return the versions of what may turn texts into ids; packages that are not installed are left out."""
    found = {}
    for name in ("tokenizers", "fastokens", "nanotoken"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    chars = 0
    for text in texts:
        if part and chars + len(text) > PIECE_CHARS:
            yield part
            part, chars = [], 0
        part.append(text)
        chars += len(text)
    if part:
        yield part


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unusable(f"{name.partition('.')[0]} is not installed") from error


def _loaded(name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic in Rust is a BaseException
        raise Unusable(f"{name} cannot take this tokenizer: {error}") from error


def _release(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version(name).split(".")[:3] if part.isdigit())


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let thread pools that are made inside have one thread, and leave the user's environment as it was.

    One at a time: of two that overlap, the later would take the earlier's setting for the user's, and leave it behind.
    """
    with _ENVIRONMENT, in_environment(dict.fromkeys(THREAD_COUNTS, "1")):
        yield
