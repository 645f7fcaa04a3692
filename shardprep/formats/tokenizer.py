"""What a tokenizer means for a job: ids, template, end token, padding; decided once, before any object is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardprep.core.block import offsets_of
from shardprep.errors import ConfigError, TokenizerError
from shardprep.formats.tokenizer_file import decoded, leaking, load, plain_text, set_plain, template_of

__all__ = ["END_TOKENS", "Tokenizer", "TokenizerSpec", "frame", "resolve", "spec_of"]

MAX_ID = 2**31 - 2  # ids are int32, and so is vocab_size = id + 1

# Ends of documents, in the order in which they are looked for when neither a flag, nor tokenizer_config.json, nor
# the template names one. What ends a *turn* of a chat (<|im_end|>, <|eot_id|>, <end_of_turn>) is not among them: a
# wrong guess trains the wrong thing without a word, a missing one stops the job with a clear message.
END_TOKENS = (
    "<|endoftext|>",  # GPT-2, Qwen, Phi, OLMo, StarCoder, gpt-oss: a document's end, also where turn ends exist
    "<|end_of_text|>",  # Llama 3, Granite
    "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek
    "</s>",  # Llama 2, Mistral, T5, RoBERTa
    "<eos>",  # Gemma
    "<|eos|>",
    "[EOS]",
    "[SEP]",  # BERT without a template
)


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
    names = _Names(data, config)
    prefix, suffix = ((), ()) if no_template and eos_token is not None else template_of(names.reference)
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
            if not _is_number(flag):
                raise ConfigError(f"{name} {flag!r}: a tokenizer object takes an id here, not a token's text")
            return _id(name, flag), [f"{what} token {int(flag)}, from {name}"]
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


class _Names:
    """The tokens of one file by name, and the ways in which flags and files name them."""

    def __init__(self, data: bytes, config: bytes | None) -> None:
        self.text = decoded(data)
        self.reference = load(self.text)
        self.padding: dict[str, Any] | None = self.reference.padding
        self.truncation: dict[str, Any] | None = self.reference.truncation
        self.sampling = any(getattr(self.reference.model, key, None) for key in ("dropout", "alpha"))
        if self.sampling:
            self.reference = load(plain_text(self.text, (), sampling=True))
        set_plain(self.reference)
        self.vocab: dict[str, int] = self.reference.get_vocab(with_added_tokens=True)
        self.size = max(self.vocab.values(), default=-1) + 1
        added = self.reference.get_added_tokens_decoder()
        self.added = {token.content: i for i, token in added.items()}
        self.special = {token.content: i for i, token in added.items() if token.special}
        self.config = _config(config)

    def show(self, token: int) -> str:
        text = self.reference.id_to_token(token)
        return f"{token}" if text is None else f"{text!r} ({token})"

    def switched_off(self) -> list[str]:
        notes = []
        if self.truncation:
            notes.append(f"the file's truncation to {self.truncation.get('max_length')} tokens is switched off")
        if self.padding:
            notes.append("the file's padding is switched off")
        if self.sampling:
            notes.append("the file's random sampling of ids (dropout) is switched off")
        return notes

    def literal(self, control: set[int]) -> tuple[tuple[str, ...], list[str]]:
        """Return the tokens that need a changed file to be text inside texts, and what that cannot reach."""
        names = {**self.special, **{text: i for text, i in self.added.items() if i in control}}
        literal = leaking(self.reference, names)
        left = literal
        if literal:
            try:
                left = leaking(set_plain(load(plain_text(self.text, literal, sampling=self.sampling))), names)
            except TokenizerError:  # the model is built on these words: they stay
                literal = ()
        notes = [f"{text!r} in a text gives the token's own id: the model has it as an ordinary word" for text in left]
        return literal, notes

    def remarks(self, control: set[int], eos_id: int | None) -> list[str]:
        """Return what a user may not expect of the ids."""
        notes = []
        if eos_id is not None and eos_id < self.size and eos_id not in self.added.values():
            notes.append(f"end token {self.show(eos_id)} is an ordinary one: it may stand inside texts too")
        ordinary = [text for text in self.added if text not in self.special]
        if ordinary:
            # Not special means: words of the vocabulary (runs of blanks, tags), without which ids would be others.
            listed = ", ".join(repr(text) for text in ordinary[:4]) + (", ..." if len(ordinary) > 4 else "")
            notes.append(f"{len(ordinary)} added tokens that the file calls not special stay words of texts: {listed}")
        beyond = sorted(i for i in control if i >= self.size)
        notes += [
            f"id {i} is beyond the file's {self.size} ids: the model needs {i + 1} embedding rows" for i in beyond
        ]
        return notes

    def flag(self, name: str, value: str) -> int:
        """Return the id that a flag names: a number is an id, unless an added token is spelt like it."""
        if _is_number(value) and value not in self.added:
            return _id(name, value)  # beyond the vocabulary too: models have spare rows, and some files no end token
        if value not in self.vocab:
            listed = ", ".join(repr(text) for text in list(self.special)[:8]) or "none"
            raise ConfigError(f"{name} {value!r}: the tokenizer has no such token. Its special tokens: {listed}")
        return self.vocab[value]

    def end(self, flag: str | None, suffix: tuple[int, ...]) -> tuple[int, list[str]]:
        if flag is not None:
            return self._found(self.flag("--eos-token", flag), "end", "--eos-token")
        named = _named(self.config, "eos_token")
        if named is not None:
            if named not in self.vocab:
                raise TokenizerError(
                    f"tokenizer_config.json names the end token {named!r}, which the tokenizer file does not have: "
                    "give the right one with --eos-token TEXT_OR_ID, or --no-eos to end documents without one"
                )
            return self._found(self.vocab[named], "end", "tokenizer_config.json")
        if suffix:
            return self._found(suffix[-1], "end", "the file's template")
        for name in END_TOKENS:
            if name in self.special:  # only there: in Gemma's file "</s>" is a word, HTML's strike tag
                return self._found(self.special[name], "end", "the list of well-known names")
        raise TokenizerError(
            "the tokenizer has no end token: tokenizer_config.json names none, the file's template puts none after the "
            f"text, and none of {', '.join(END_TOKENS)} is among its special tokens. Give one with --eos-token TEXT_OR_ID, or "
            "--no-eos to end documents without one"
        )

    def pad(self, flag: str | None, eos_id: int | None) -> tuple[int | None, list[str]]:
        if flag is not None:
            return self._found(self.flag("--pad-token", flag), "padding", "--pad-token")
        named = _named(self.config, "pad_token")
        if named is not None and named in self.vocab:
            return self._found(self.vocab[named], "padding", "tokenizer_config.json")
        lost = [] if named is None else [f"tokenizer_config.json's padding token {named!r} is not in the file"]
        if self.padding:
            token, notes = self._found(int(self.padding["pad_id"]), "padding", "the file's padding section")
            return token, lost + notes
        if eos_id is None:
            return None, [*lost, "no padding token: give one with --pad-token where training needs it"]
        return eos_id, [*lost, *self._found(eos_id, "padding", "the end token")[1]]

    def _found(self, token: int, what: str, origin: str) -> tuple[int, list[str]]:
        return token, [f"{what} token {self.show(token)}, from {origin}"]


def _config(data: bytes | None) -> dict[str, Any]:
    try:
        config = json.loads(data or b"{}")
    except ValueError as error:
        raise TokenizerError(f"tokenizer_config.json is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise TokenizerError("tokenizer_config.json must hold one JSON object")
    return config


def _named(config: dict[str, Any], key: str) -> str | None:
    """Return the token's text: a string, or an object with its content."""
    value = config.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _id(name: str, text: str) -> int:
    if int(text) > MAX_ID:
        raise ConfigError(f"{name} {text}: ids are int32, at most {MAX_ID}")
    return int(text)
