"""The tokens of one tokenizer.json by name: how flags, tokenizer_config.json and the file itself name them."""

from __future__ import annotations

import json
from typing import Any

from shardprep.errors import ConfigError, TokenizerError
from shardprep.formats.tokenizer_file import decoded, leaking, load, plain_text, set_plain, template_of

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


class Names:
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
        """Return a token for messages: its text and id."""
        text = self.reference.id_to_token(token)
        return f"{token}" if text is None else f"{text!r} ({token})"

    def switched_off(self) -> list[str]:
        """Return notes on what the file asks for and does not get."""
        notes = []
        if self.truncation:
            notes.append(f"the file's truncation to {self.truncation.get('max_length')} tokens is switched off")
        if self.padding:
            notes.append("the file's padding is switched off")
        if self.sampling:
            notes.append("the file's random sampling of ids (dropout) is switched off")
        return notes

    def template(self, *, needed: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the template's ids before and after a text; one that is not applied may be of any kind."""
        try:
            return template_of(self.reference)
        except TokenizerError:
            if needed:
                raise
            return (), ()

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
        if is_number(value) and value not in self.added:
            return id_of(name, value)  # beyond the vocabulary too: models have spare rows, and some files no end token
        if value not in self.vocab:
            listed = ", ".join(repr(text) for text in list(self.special)[:8]) or "none"
            raise ConfigError(f"{name} {value!r}: the tokenizer has no such token. Its special tokens: {listed}")
        return self.vocab[value]

    def end(self, flag: str | None, suffix: tuple[int, ...]) -> tuple[int, list[str]]:
        """Return the end token, and a note on where it comes from. Raises TokenizerError where there is none."""
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
        """Return the padding token, None where nothing names one, and notes on where it comes from."""
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


def is_number(text: str) -> bool:
    """Say whether a flag's value is made of digits alone."""
    return text.isascii() and text.isdigit()


def id_of(name: str, text: str) -> int:
    """Return the id that a number in a flag means. Raises ConfigError for one that int32 cannot hold."""
    if int(text) > MAX_ID:
        raise ConfigError(f"{name} {text}: ids are int32, at most {MAX_ID}")
    return int(text)
