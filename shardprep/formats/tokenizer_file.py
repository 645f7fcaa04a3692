"""A tokenizer.json as a file: loading it, its template, and what must change in it before text is only text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers

from shardprep.errors import TokenizerError

# Texts that tell the template's ids from the text's: different lengths, first and last tokens.
_PROBES = ("a", "hello world", "7", "x y z.")


def load(text: str) -> tokenizers.Tokenizer:
    """Return the Hugging Face tokenizer of a tokenizer.json as it is.

    Raises TokenizerError for anything that is not such a file.
    """
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        raise TokenizerError(
            f"the tokenizer file cannot be read: {error}. It must be the tokenizer.json of Hugging Face tokenizers "
            "(not vocab.txt, nor a SentencePiece .model file)"
        ) from error


def set_plain(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Switch off what a file may ask for: special tokens in texts are text, nothing is cut, nothing is padded."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def decoded(data: bytes) -> str:
    """Return the file's text. Raises TokenizerError where it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"the tokenizer file is not text: {error}. Give the path of a tokenizer.json") from error


def template_of(tokenizer: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that the file's template puts before and after a text.

    Found by encoding with and without it, so that every kind of post-processor counts (TemplateProcessing,
    BertProcessing, RobertaProcessing, ByteLevel, a sequence of them). Raises TokenizerError for a template that is
    not "ids, text, ids".
    """
    frames: set[tuple[tuple[int, ...], tuple[int, ...]]] | None = None
    for text in _PROBES:
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        full = tokenizer.encode(text, add_special_tokens=True).ids
        here = {
            (tuple(full[:i]), tuple(full[i + len(plain) :]))
            for i in range(len(full) - len(plain) + 1)
            if full[i : i + len(plain)] == plain
        }
        frames = here if frames is None else frames & here
    if not frames:
        raise TokenizerError(
            "the tokenizer file's template does more than put tokens before and after the text, which is not "
            "supported: drop it with --no-template"
        )
    return min(frames)


def leaking(tokenizer: tokenizers.Tokenizer, names: Mapping[str, int]) -> tuple[str, ...]:
    """Return those tokens (text -> id) whose own spelling in a text gives their id.

    Special ones do so where the model itself has them as a word or piece (Unigram, words split at blanks), other
    added ones always. The unknown token is left out: it is what any unknown word gives.
    """
    unknown = getattr(tokenizer.model, "unk_token", None)
    names = {text: i for text, i in names.items() if text != unknown}
    shapes = [shape.format for shape in ("{}", " {} ", "x{}y", "x {}. y")]
    texts = [shape(name) for name in names for shape in shapes]
    found = [set(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    groups = [set().union(*found[k : k + len(shapes)]) for k in range(0, len(found), len(shapes))]
    return tuple(name for (name, i), ids in zip(names.items(), groups, strict=True) if i in ids)


def plain_text(text: str, literal: Iterable[str], sampling: bool) -> str:
    """Return a tokenizer.json for encoding texts only: `literal` tokens cannot come from text, ids are not sampled.

    A literal token that the file calls ordinary becomes a special one. Where it is special, and the model has it as
    a word, the word gets a spelling that no text holds, and the token is no added one any more. Ids do not move.
    """
    names = set(literal)
    if not names and not sampling:
        return text
    file = json.loads(text)
    model = file["model"]
    vocabulary = model["vocab"]
    pieces = vocabulary if isinstance(vocabulary, dict) else {piece: i for i, (piece, _) in enumerate(vocabulary)}
    added: list[dict[str, Any]] = file.get("added_tokens") or []
    special = {token["content"] for token in added if token["special"]}
    renamed = {name: f"\ufdd0{pieces[name]}\ufdd1" for name in names & special if name in pieces}
    if isinstance(vocabulary, dict):
        model["vocab"] = {renamed.get(piece, piece): i for piece, i in vocabulary.items()}
    else:
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in vocabulary]
    file["added_tokens"] = [
        {**token, "special": token["special"] or token["content"] in names}
        for token in added
        if token["content"] not in renamed
    ]
    for key in ("dropout", "alpha", "nbest_size"):
        if model.get(key) is not None:
            model[key] = None
    return json.dumps(file, ensure_ascii=False)
