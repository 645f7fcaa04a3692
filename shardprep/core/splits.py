"""Which split a document belongs to: a pure function of its id.

An id is hashed to 64 bits (the first 8 bytes of BLAKE2b with digest size 8 over its UTF-8 bytes, little endian), and
the hash is compared with the cumulative fractions. What is stable:

- other documents never matter: growing or shrinking the input moves no document;
- a split keeps its documents while its own fraction and the sum of the fractions before it stay the same, so
  "train=0.9,validation=0.1" may become "train=0.9,validation=0.05,test=0.05": train does not change, and test is
  taken out of validation;
- names do not enter the hash: renaming a split moves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_DIGITS = 30  # far below what one hash of 2**64 can tell
_HASHES = 2**64


@dataclass(frozen=True)
class Splits:
    """Names and fractions of the splits, in order; fractions are exact, positive, and sum to 1 within 1e-9."""

    names: tuple[str, ...] = ("train",)
    fractions: tuple[Fraction, ...] = (Fraction(1),)
    _stops: NDArray[np.uint64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.names or len(self.names) != len(self.fractions):
            raise ConfigError(f"splits need a name and a fraction each, got {len(self.names)} names")
        for name, fraction in zip(self.names, self.fractions, strict=True):
            if not _NAME.fullmatch(name):
                raise ConfigError(f"a split's name is lower-case letters, digits, _ and -, got {name!r}")
            if fraction <= 0:
                raise ConfigError(f"the fraction of split {name} must be above 0, got {float(fraction)}")
        if len(set(self.names)) != len(self.names):
            raise ConfigError(f"each split is named once, got {', '.join(self.names)}")
        whole = sum(self.fractions, Fraction(0))
        if abs(whole - 1) > Fraction(1, 10**9):
            raise ConfigError(f"the fractions of the splits must sum to 1, got {float(whole)}")
        # Where all but the last split stop: hashes below the stop belong to it. The last takes what is left.
        stops, total = [], Fraction(0)
        for fraction in self.fractions[:-1]:
            total += fraction
            stops.append(min(_HASHES - 1, int(total * _HASHES)))
        object.__setattr__(self, "_stops", np.array(stops, dtype=np.uint64))

    def __str__(self) -> str:
        return ",".join(f"{name}={float(part):.12g}" for name, part in zip(self.names, self.fractions, strict=True))


def parse_splits(text: str) -> Splits:
    """Return the splits of "train=0.9,validation=0.1". Raises ConfigError that says what is wrong with the text."""
    names, fractions = [], []
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        try:
            value = Decimal(number.strip())
        except InvalidOperation:
            value = Decimal("NaN")
        if not equals or not value.is_finite():
            raise ConfigError(f"a split is written name=fraction, as in train=0.9,validation=0.1; got {part.strip()!r}")
        if value.adjusted() not in range(-_DIGITS, 1):  # a huge exponent is not to be worked out
            raise ConfigError(f"the fraction of a split is at most 1, and at least 1e-{_DIGITS}; got {part.strip()!r}")
        names.append(name.strip())
        fractions.append(Fraction(value))
    return Splits(tuple(names), tuple(fractions))


def split_of(ids: Sequence[str] | pa.Array, splits: Splits) -> NDArray[np.int64]:
    """Return the index of the split of each id, int64 (ids,). Ids are strings, never null."""
    if len(splits.names) == 1:
        return np.zeros(len(ids), dtype=np.int64)
    return np.searchsorted(splits._stops, id_hashes(ids), side="right").astype(np.int64)  # noqa: SLF001  same module


def id_hashes(ids: Sequence[str] | pa.Array) -> NDArray[np.uint64]:
    """Return the 64-bit hash of each id, uint64 (ids,); about 1 us an id."""
    values = ids.cast(pa.large_binary()).to_pylist() if isinstance(ids, pa.Array) else [i.encode() for i in ids]
    digests = b"".join([blake2b(value, digest_size=8).digest() for value in values])
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64, copy=False)
