"""What a tokenizer means for a job: ids, template, end token, padding; decided once, before any object is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardprep.core.block import offsets_of
from shardprep.errors import ConfigError, TokenizerError
from shardprep.formats.token_names import END_TOKENS, MAX_ID, Names, id_of, is_number

__all__ = ["END_TOKENS", "Tokenizer", "TokenizerSpec", "frame", "resolve", "spec_of"]


@runtime_checkable
class Tokenizer(Protocol):
    """What may be passed to `shardprep.build(tokenizer=...)` instead of a file; it must pickle (cloudpickle).

    fingerprint  sha256 hex of what defines the ids: equal fingerprints mean equal ids
    vocab_size   1 + the largest id that it can emit, added tokens counted
    eos_id, pad_id  optional attributes: the end token and the padding token
    """

    fingerprint: str
    vocab_size: int

    def encode_batch(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return flat ids int32 (tokens,) and offsets int64 (texts + 1,), without template and end token."""
        ...


@dataclass(frozen=True)
class TokenizerSpec:
    """Everything about a tokenizer that is decided once, on the driver.

    fingerprint  sha256 hex of the tokenizer file's bytes
    vocab_size   1 + the largest id that can be emitted, end and padding token included
    prefix       ids before each text: the template's
    suffix       ids after each text: the template's, then the end token unless the template ends in it
    special      text -> id of all special tokens
    notes        what was switched off, and where end and padding token came from
    literal      added tokens that the file as it is would not take as text (see tokenizer_file.plain_text)
    sampling     the file asks for random ids (BPE dropout); switched off
    """

    fingerprint: str
    vocab_size: int
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    eos_id: int | None = None
    pad_id: int | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    literal: tuple[str, ...] = ()
    sampling: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values."""
        return {
            name: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TokenizerSpec:
        """Return the spec that `to_json` wrote."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in value.items()}
        return cls(**fields)


def frame(
    ids: NDArray[np.int32], offsets: NDArray[np.int64], prefix: Sequence[int], suffix: Sequence[int]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the rows with `prefix` before and `suffix` after each: ids int32, offsets int64 (rows + 1,)."""
    if not prefix and not suffix:
        return ids, offsets
    framed = offsets_of(np.diff(offsets) + (len(prefix) + len(suffix)))
    out = np.empty(framed[-1], dtype=np.int32)
    is_text = np.ones(framed[-1], dtype=bool)
    for i, token in enumerate(prefix):
        out[framed[:-1] + i] = token
        is_text[framed[:-1] + i] = False
    for i, token in enumerate(suffix):
        out[framed[1:] - len(suffix) + i] = token
        is_text[framed[1:] - len(suffix) + i] = False
    out[is_text] = ids[offsets[0] : offsets[-1]]
    return out, framed


def resolve(
    data: bytes,
    config: bytes | None = None,
    *,
    eos_token: str | None = None,
    no_eos: bool = False,
    no_template: bool = False,
    pad_token: str | None = None,
) -> TokenizerSpec:
    """Decide what the tokenizer in `data` (the bytes of a tokenizer.json) means for the job.

    `config` is the tokenizer_config.json beside it. The end token is `eos_token`, else the one that `config` names,
    else the special token that the file's template puts after the text, else the first of END_TOKENS that the file
    has. The padding token is `pad_token`, else the one that `config` names, else the file's padding section's, else
    the end token. Raises TokenizerError for a file that cannot be used or has no end token, ConfigError for a flag
    that names an unknown token.
    """
    if eos_token is not None and no_eos:
        raise ConfigError("--eos-token and --no-eos exclude each other: give one of them")
    names = Names(data, config)
    prefix, suffix = names.template(needed=not no_template)
    eos_id, notes = (None, []) if no_eos else names.end(eos_token, suffix)
    pad_id, more = names.pad(pad_token, eos_id)
    notes = names.switched_off() + notes + more
    if no_template:
        prefix, suffix = (), ()
        notes.append("the file's template is not applied (--no-template)")
    if no_eos and suffix:
        closing = " ".join(names.show(i) for i in suffix)
        notes.append(f"no end token is added; the file's template still puts {closing} after each text")
    if eos_id is not None:
        suffix = closed(suffix, eos_id)
    control = {i for i in (*prefix, *suffix, eos_id, pad_id) if i is not None}
    spec = TokenizerSpec(
        fingerprint=hashlib.sha256(data).hexdigest(),
        vocab_size=max(names.size - 1, *control, 0) + 1,
        prefix=prefix,
        suffix=suffix,
        eos_id=eos_id,
        pad_id=pad_id,
        special=names.special,
        sampling=names.sampling,
    )
    literal, more = names.literal(control)
    return replace(spec, literal=literal, notes=(*notes, *more, *names.remarks(control, eos_id)))


def closed(suffix: tuple[int, ...], eos_id: int) -> tuple[int, ...]:
    """Return the suffix so that it ends in exactly one end token.

    Whether the text itself ends in that id is no question here: special tokens inside a text are text, so that only
    an ordinary token, which the user named as end token, can stand there; then it is content.
    """
    while suffix and suffix[-1] == eos_id:
        suffix = suffix[:-1]
    return (*suffix, eos_id)


def spec_of(
    tokenizer: Tokenizer, *, eos_token: str | None = None, no_eos: bool = False, pad_token: str | None = None
) -> TokenizerSpec:
    """Decide the same for a tokenizer object: flags are ids, else its `eos_id` and `pad_id` count; no template."""
    if eos_token is not None and no_eos:
        raise ConfigError("--eos-token and --no-eos exclude each other: give one of them")
    kind = type(tokenizer).__name__
    size = tokenizer.vocab_size
    if not isinstance(tokenizer.fingerprint, str) or not tokenizer.fingerprint:
        raise TokenizerError(f"tokenizer {kind}: fingerprint must be a string that tells what defines the ids")
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size <= MAX_ID + 1:
        raise TokenizerError(f"tokenizer {kind}: vocab_size must be 1 + its largest id, got {size!r}")

    def pick(name: str, flag: str | None, attribute: str) -> tuple[int | None, list[str]]:
        what = "end" if attribute == "eos_id" else "padding"
        if flag is not None:
            if not is_number(flag):
                raise ConfigError(f"{name} {flag!r}: a tokenizer object takes an id here, not a token's text")
            return id_of(name, flag), [f"{what} token {int(flag)}, from {name}"]
        value = getattr(tokenizer, attribute, None)
        return (None, []) if value is None else (int(value), [f"{what} token {int(value)}, from the tokenizer object"])

    eos_id, notes = (None, []) if no_eos else pick("--eos-token", eos_token, "eos_id")
    if eos_id is None and not no_eos:
        raise TokenizerError(
            f"tokenizer {kind} has no end token: give it an attribute eos_id, or --eos-token ID, or --no-eos to end "
            "documents without one"
        )
    pad_id, more = pick("--pad-token", pad_token, "pad_id")
    if pad_id is None and eos_id is not None:
        pad_id, more = eos_id, [f"padding token {eos_id}, from the end token"]
    return TokenizerSpec(
        fingerprint=tokenizer.fingerprint,
        vocab_size=max(int(size) - 1, eos_id or 0, pad_id or 0) + 1,
        suffix=() if eos_id is None else (eos_id,),
        eos_id=eos_id,
        pad_id=pad_id,
        notes=(*notes, *more),
    )
