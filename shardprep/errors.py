"""Everything that shardprep raises on purpose.

    ShardprepError            catch this one
    +-- ConfigError           the call is wrong                      exit 2
    +-- SourceError           the user's data: names object and line exit 1
    |   +-- TooManyBad        more set aside than --max-bad allows
    |   +-- TypeConflict      an undeclared column with two types
    +-- TokenizerError        a tokenizer that cannot be used, or a backend that differs from the reference
    +-- StoreError            disks and object stores                exit 1
    |   +-- NotFound          no such object
    |   +-- Changed           the object is not the one that was listed
    |   +-- Exists            a create-only or conditional put was refused
    |   +-- Denied            credentials or permissions
    |   +-- Unavailable       gave up after the retries
    |   +-- Full              no space left
    +-- ManifestError         a data set that is broken or unfinished
    |   +-- ManifestConflict  another data set is published there
    +-- BlockError            rows that do not fit where they are put
    +-- WorkerError           workers that die, or that differ from the driver
    +-- PilotError            a pilot whose command failed, or played too few steps

Errors carry fields and survive pickling, since most of them are raised in another process.
"""

from __future__ import annotations

from typing import Any


class ShardprepError(Exception):
    """Base of all errors raised on purpose; `fields` hold what the message was made from."""

    exit_code = 1

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(kind: type[ShardprepError], message: str, fields: dict[str, Any]) -> ShardprepError:
    return kind(message, **fields)


class ConfigError(ShardprepError):
    """The call is wrong: nothing was done."""

    exit_code = 2


class SourceError(ShardprepError):
    """The user's data; fields: key, line, reason."""


class TooManyBad(SourceError):
    """More documents were set aside than the limit allows."""


class TypeConflict(SourceError):
    """An undeclared column has two types; fields: column, and both places and types."""


class TokenizerError(ShardprepError):
    """A tokenizer that cannot be used, or whose fast backend differs from the reference."""


class StoreError(ShardprepError):
    """Storage failed; fields: uri, and attempts where it was retried."""


class NotFound(StoreError):
    """No such object."""


class Changed(StoreError):
    """The object is no longer the one that was listed."""


class Exists(StoreError):
    """A create-only put found an object, or a conditional put found another one."""


class Denied(StoreError):
    """Credentials are missing, wrong or expired, or permission is refused."""


class Unavailable(StoreError):
    """The store could not be reached, or kept failing until the deadline."""


class Full(StoreError):
    """No space left where something was written."""


class ManifestError(ShardprepError):
    """A data set that is broken, unfinished, or of another version."""


class ManifestConflict(ManifestError):
    """Another data set is published at this place."""


class BlockError(ShardprepError):
    """Rows that do not fit the shape they are put into."""


class WorkerError(ShardprepError):
    """Workers died again and again, or run other package versions than the driver."""


class PilotError(ShardprepError):
    """A pilot whose command failed, or played too few steps to say anything."""
