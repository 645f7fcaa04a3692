"""The encoder of a worker process: which backend, and the checks of a fast one against the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardprep.errors import ConfigError, TokenizerError
from shardprep.formats.engines import Custom, Engine, Ragged, Reference, Unusable, fast_engine, joined
from shardprep.formats.tokenizer import Tokenizer, TokenizerSpec, frame
from shardprep.formats.tokenizer_file import decoded, plain_text

__all__ = ["BACKENDS", "Encoder", "load_encoder"]

BACKENDS = ("auto", "reference", "fast")

FIRST_CHECKED = 64  # documents of each process, all compared with the reference
ONE_IN = 1000  # afterwards; costs 0.9 us a document, 5 % of the fast backend's own time
KEY_IDS = 16  # ids of a row that decide whether it is one of them


class Encoder:
    """Texts to rows, with template and end token: one per worker process.

    backend  "reference", "fast:fastokens", "fast:nanotoken" or "custom"
    why      why it is this one; "" where it is what was asked for, or the fast one
    seen     documents encoded so far
    checked  documents compared with the reference so far
    rescued  documents on which the fast backend failed, encoded by the reference
    """

    def __init__(
        self, engine: Engine, spec: TokenizerSpec, why: str = "", reference: Callable[[], Engine] | None = None
    ) -> None:
        self.backend = engine.name
        self.why = why
        self.seen = self.checked = self.rescued = 0
        self._engine = engine
        self._spec = spec
        self._load_reference = reference

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Return prefix, ids and suffix of each text: flat ids int32 (tokens,), offsets int64 (texts + 1,).

        Raises TokenizerError, with the fields `index` (in `texts`), `backend` and `kind`: "difference" where the
        fast backend gives other ids than the reference (`first` tells whether the text is among the first of this
        process), "document" where no backend can encode the text. With the kind "tokenizer" a tokenizer object broke its
        promise for the batch, and there is no index.
        """
        ids, offsets = self._encode(texts)
        if self._load_reference is not None:
            self._check(texts, ids, offsets)
        self.seen += len(texts)
        return frame(ids, offsets, self._spec.prefix, self._spec.suffix)

    @cached_property
    def reference(self) -> Engine:
        """The engine to compare with; loaded when it is first needed."""
        return self._engine if self._load_reference is None else self._load_reference()

    def _encode(self, texts: Sequence[str]) -> Ragged:
        try:
            return self._engine.encode_batch(texts)
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, TokenizerError):
            raise
        except BaseException:  # noqa: BLE001 - a panic in Rust is a BaseException; one document must not end the job
            rows = [self._alone(i, text) for i, text in enumerate(texts)]
            return joined(rows)

    def _alone(self, index: int, text: str) -> NDArray[np.int32]:
        engines = [self._engine] if self._load_reference is None else [self._engine, self.reference]
        for engine in engines:
            try:
                ids = engine.encode_batch([text])[0]
            except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, TokenizerError):
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                reason = f"{type(error).__name__}: {error}"
            else:
                self.rescued += engine is not self._engine
                return ids
        raise TokenizerError(
            f"the tokenizer ({self.backend}) cannot encode a document: {reason}",
            index=index,
            kind="document",
            backend=self.backend,
        )

    def _check(self, texts: Sequence[str], ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> None:
        chosen = _one_in_a_thousand(ids, offsets)
        chosen[: max(FIRST_CHECKED - self.seen, 0)] = True
        rows = np.flatnonzero(chosen).tolist()
        if not rows:
            return
        right, bounds = self.reference.encode_batch([texts[i] for i in rows])
        for place, i in enumerate(rows):
            mine, theirs = ids[offsets[i] : offsets[i + 1]], right[bounds[place] : bounds[place + 1]]
            if not np.array_equal(mine, theirs):
                raise self._difference(i, mine, theirs)
        self.checked += len(rows)

    def _difference(self, index: int, mine: NDArray[np.int32], theirs: NDArray[np.int32]) -> TokenizerError:
        shorter = min(len(mine), len(theirs))
        unequal = np.flatnonzero(mine[:shorter] != theirs[:shorter])
        place = int(unequal[0]) if len(unequal) else shorter
        return TokenizerError(
            f"the fast tokenizer backend ({self.backend}) and the reference give different ids from token {place} on: "
            f"{mine[place : place + 5].tolist()} and {theirs[place : place + 5].tolist()}. "
            "Run again with --tokenizer-backend reference",
            index=index,
            kind="difference",
            backend=self.backend,
            first=self.seen + index < FIRST_CHECKED,
            token=place,
        )


def load_encoder(source: bytes | Tokenizer, spec: TokenizerSpec, backend: str = "auto") -> Encoder:
    """Return the encoder for a tokenizer.json (its bytes) or a tokenizer object.

    "auto" takes the fast backend where it can take the file, and says in `why` where not; whether it gives the same
    ids is the probe's question (formats/probe.py). Raises TokenizerError where "fast" was asked for and cannot be.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"--tokenizer-backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if not isinstance(source, bytes):
        return Encoder(Custom(source), spec)
    text = plain_text(decoded(source), spec.literal, sampling=spec.sampling)
    if backend == "reference":
        return Encoder(Reference(text), spec)
    loaded: list[Engine] = []

    def reference() -> Engine:
        if not loaded:
            loaded.append(Reference(text))
        return loaded[0]

    try:
        engine = fast_engine(text, reference)
    except Unusable as error:
        if backend == "fast":
            raise TokenizerError(
                f"--tokenizer-backend fast cannot be used: {error}. Leave the flag out, and the reference is used"
            ) from error
        return Encoder(reference(), spec, why=str(error))
    return Encoder(engine, spec, reference=reference)


def _one_in_a_thousand(ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows are compared, bool (rows,): chosen by their ids, so the same ones in every run.

    The key is made of length, sum and some ids of the row, evenly spaced: a fiftieth of the time of tokenizing it.
    """
    lengths = np.diff(offsets)
    filled = np.flatnonzero(lengths > 0)
    chosen = np.zeros(len(lengths), dtype=bool)
    if not len(filled):
        return chosen
    start, length = offsets[filled], lengths[filled]
    key = _mixed(length.astype(np.uint64), np.add.reduceat(ids.view(np.uint32), start))
    for step in range(KEY_IDS):
        key = _mixed(key, ids[start + length * step // KEY_IDS])
    chosen[filled] = key % np.uint64(ONE_IN) == 0
    return chosen


def _mixed(key: NDArray[np.uint64], more: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the key with one more number in it; the steps of splitmix64 spread it over all bits."""
    key = (key ^ more.astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
    return key ^ (key >> np.uint64(29))
