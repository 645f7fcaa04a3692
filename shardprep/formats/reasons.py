"""Why a document is set aside: one code, one rule, one test each."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Reason codes, as they stand in the ledger and in the rejects.

    The whole object (one found, one set aside):

    ===================  =====================================================================================
    empty_object         no bytes, or nothing but white space
    too_large            more bytes, after decompression, than --max-object-size; also a single line above it
    bad_compression      gzip or zstd data that is damaged, cut short, followed by something else, or packed
                         more than twice; nothing of it is used. Zero bytes after gzip data are padding
    unsupported_format   bzip2, xz, zip, lz4, Parquet, Avro ...: unpack or convert first
    wrong_encoding       UTF-16 or UTF-32; convert to UTF-8 first
    missing_object       named in a list, or listed before, but not there
    unusable_key         a key or list entry that no client can ask for
    object_changed       not the object that was listed: another size or ETag; also when it changes during the run
    access_denied        this object may not be read, while others may
    unreadable_object    it cannot be read, while others can; after the retries
    worker_died          reading or tokenizing it ended the worker process, again when alone (also one document)
    ===================  =====================================================================================

    One document (a line, an element of an array, or the object that it fills):

    ===================  =====================================================================================
    invalid_json         the JSON parser refuses it
    invalid_utf8         bytes that are no UTF-8
    lone_surrogate       half of a surrogate pair, such as an escaped U+D83D alone, anywhere in a key or a string
    nan_literal          NaN, Infinity or -Infinity as a value, anywhere, used field or not: that is no JSON
    number_out_of_range  a number beyond the range of float64, such as 1e999, anywhere
    too_deep             nested deeper than 1,024 levels; or deeper than 500 where it must be read twice
    several_values       more than one JSON value on a line, or in an object that is not lines
    not_an_object        a string, number, list ... where an object belongs
    duplicate_key        a field that is used occurs twice in its object
    missing_text         the text field is not there
    null_text            the text field is null
    text_wrong_type      the text field is neither string nor null
    empty_text           the text is "" (white space alone is text)
    missing_id           the id field is not there
    null_id              the id field is null
    id_wrong_type        the id field is neither string nor integer (true and 1.0 are no integers)
    missing_group        the --split-by field is not there, or null
    group_wrong_type     the --split-by field is neither string nor integer
    column_wrong_type    a declared column holds another type
    integer_out_of_range an integer column holds an integer beyond 64 bits
    number_not_exact     a float64 column holds an integer that float64 can only round
    reference_wrong_type a `source-ref` that is not a string, or is empty
    not_tokenizable      the tokenizer fails on this text, with every backend
    too_long             more tokens than --max-length, with --overflow reject
    duplicate_id         a later document with the id of another, with --on-duplicate-id set-aside
    duplicate_text       a later document with the text of another, with --dedup exact
    ===================  =====================================================================================
    """

    EMPTY_OBJECT = "empty_object"
    TOO_LARGE = "too_large"
    BAD_COMPRESSION = "bad_compression"
    UNSUPPORTED_FORMAT = "unsupported_format"
    WRONG_ENCODING = "wrong_encoding"
    MISSING_OBJECT = "missing_object"
    UNUSABLE_KEY = "unusable_key"
    OBJECT_CHANGED = "object_changed"
    ACCESS_DENIED = "access_denied"
    UNREADABLE_OBJECT = "unreadable_object"
    WORKER_DIED = "worker_died"

    INVALID_JSON = "invalid_json"
    INVALID_UTF8 = "invalid_utf8"
    LONE_SURROGATE = "lone_surrogate"
    NAN_LITERAL = "nan_literal"
    NUMBER_OUT_OF_RANGE = "number_out_of_range"
    TOO_DEEP = "too_deep"
    SEVERAL_VALUES = "several_values"
    NOT_AN_OBJECT = "not_an_object"
    DUPLICATE_KEY = "duplicate_key"
    MISSING_TEXT = "missing_text"
    NULL_TEXT = "null_text"
    TEXT_WRONG_TYPE = "text_wrong_type"
    EMPTY_TEXT = "empty_text"
    MISSING_ID = "missing_id"
    NULL_ID = "null_id"
    ID_WRONG_TYPE = "id_wrong_type"
    MISSING_GROUP = "missing_group"
    GROUP_WRONG_TYPE = "group_wrong_type"
    COLUMN_WRONG_TYPE = "column_wrong_type"
    INTEGER_OUT_OF_RANGE = "integer_out_of_range"
    NUMBER_NOT_EXACT = "number_not_exact"
    REFERENCE_WRONG_TYPE = "reference_wrong_type"
    NOT_TOKENIZABLE = "not_tokenizable"
    TOO_LONG = "too_long"
    DUPLICATE_ID = "duplicate_id"
    DUPLICATE_TEXT = "duplicate_text"


# What a run meets, and not what the objects hold: the next run of the same plan may be able to use them.
FAULTS = frozenset(
    {
        Reason.OBJECT_CHANGED,
        Reason.MISSING_OBJECT,
        Reason.ACCESS_DENIED,
        Reason.UNREADABLE_OBJECT,
        Reason.WORKER_DIED,
    }
)
# Set aside because the caller asked for each text, or id, once: there is nothing bad about them.
REPEATED = frozenset({Reason.DUPLICATE_TEXT, Reason.DUPLICATE_ID})


class Refused(Exception):
    """Carries a reason out of the parser's inner functions; becomes a Reject, never leaves this floor.

    line: 1-based line inside the bytes that were looked at, None where it means nothing.
    """

    def __init__(self, reason: Reason, detail: str, line: int | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.line = line
