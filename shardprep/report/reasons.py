"""Reason codes in plain words, for people who have never seen the code."""

from __future__ import annotations

IN_WORDS = {
    "empty_object": "the object is empty",
    "too_large": "larger than --max-object-size",
    "bad_compression": "compressed data that is damaged or cut short",
    "unsupported_format": "a format that is not read: unpack or convert it first",
    "wrong_encoding": "UTF-16 or UTF-32 instead of UTF-8",
    "missing_object": "named in a list, but not there",
    "unusable_key": "a key that no client can ask for",
    "object_changed": "changed since it was listed",
    "access_denied": "may not be read",
    "unreadable_object": "could not be read, while others could",
    "worker_died": "ended its worker process, again when alone",
    "invalid_json": "not valid JSON",
    "invalid_utf8": "bytes that are not UTF-8",
    "lone_surrogate": "half a surrogate pair in a string",
    "nan_literal": "NaN or Infinity, which JSON does not have",
    "number_out_of_range": "a number too large for a float64",
    "too_deep": "nested too deeply",
    "several_values": "several JSON values where one belongs",
    "not_an_object": "JSON, but not an object",
    "duplicate_key": "a field that is used occurs twice",
    "missing_text": "no text field",
    "null_text": "the text is null",
    "text_wrong_type": "the text is not a string",
    "empty_text": "the text is empty",
    "missing_id": "no id field",
    "null_id": "the id is null",
    "id_wrong_type": "the id is neither a string nor an integer",
    "missing_group": "no field to split by",
    "group_wrong_type": "the field to split by is neither a string nor an integer",
    "column_wrong_type": "a column holds another type",
    "integer_out_of_range": "an integer beyond 64 bits",
    "number_not_exact": "an integer that a float64 cannot hold exactly",
    "reference_wrong_type": "a source-ref that is not a URI",
    "not_tokenizable": "the tokenizer fails on this text",
    "too_long": "longer than --max-length",
    "duplicate_id": "the id of an earlier document",
    "duplicate_text": "the text of an earlier document",
}


def in_words(reason: str) -> str:
    """Return a reason code in plain words; a code of a later version is read as it is written."""
    return IN_WORDS.get(reason, reason.replace("_", " "))
