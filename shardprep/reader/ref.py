"""What it takes to read one shard, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardprep.core.content import ShardInfo
from shardprep.errors import ManifestError


@dataclass(frozen=True, eq=False)
class ShardRef:
    """One shard of one data set: where the set is, how its store is opened, and what the manifest says of the shard.

    Holds no connection, so it may be pickled and may cross a fork. The ending of the shard's name tells its format.
    """

    uri: str
    options: Mapping[str, str]
    kind: str
    info: ShardInfo

    @property
    def address(self) -> str:
        """Return the shard's whole name, for messages."""
        return f"{self.uri.rstrip('/')}/{self.info.name}"

    def broken(self, what: str) -> ManifestError:
        """Return the error that names this shard; `what` says how it differs from what the manifest says of it."""
        return ManifestError(
            f"shard {self.address} {what}. Restore the file, or build the data set anew; `shardprep verify {self.uri}` "
            "looks at all shards.",
            shard=self.info.name,
            uri=self.uri,
        )
