"""shardprep: many small JSON objects in, a few balanced, length-bucketed shards out."""

from shardprep.api import build
from shardprep.version import __version__

__all__ = ["__version__", "build"]
