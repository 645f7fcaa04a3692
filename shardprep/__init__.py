"""shardprep: many small JSON objects in, a few balanced, length-bucketed shards out."""

from shardprep.api import build, mix, open  # noqa: A004  shardprep.open is the name that people look for
from shardprep.version import __version__

__all__ = ["__version__", "build", "mix", "open"]
