"""What ObjectStore needs of a client: obstore, botocore and s3fs fill it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shardprep.storage.faults import Fault, classify


class Client(Protocol):
    """Single calls on one bucket, keys in full; they raise what their library raises."""

    def get(self, key: str, etag: str, byte_range: tuple[int, int] | None, size_bytes: int) -> tuple[bytes, str]:
        """Return bytes and ETag of an object with this ETag ("": any), or of its bytes start to stop."""

    def head(self, key: str) -> tuple[int, str]:
        """Return size in bytes and ETag."""

    def put(self, key: str, data: bytes | memoryview, *, is_new: bool = False, etag: str = "") -> str:
        """Write an object, only where there is none, or only over the one with this ETag; return the new ETag."""

    def put_file(self, key: str, path: str) -> str:
        """Write an object from a file, a part at a time; return the new ETag."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete up to 1,000 objects."""

    def reset(self) -> None:
        """Forget connections, credentials and region."""


def delete_all(client: Client, keys: Sequence[str]) -> None:
    """Delete objects; those that are not there are no error, in stores that say so either."""
    try:
        client.delete(keys)
    except Exception as error:
        if classify(error) is not Fault.NOT_FOUND or len(keys) == 1:
            if classify(error) is Fault.NOT_FOUND:
                return
            raise
        for key in keys:  # GCS and Azure refuse what is not there: which one it was is not told
            delete_all(client, [key])
