"""shardprep: many small JSON objects in, a few balanced, length-bucketed shards out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardprep.api import build, mix, open, pipe  # noqa: A004  shardprep.open is the name that people look for
from shardprep.version import __version__

if TYPE_CHECKING:
    from shardprep.budget import BudgetGuard as BudgetGuard
    from shardprep.piloting import pilot as pilot
    from shardprep.stopping import EarlyStopping as EarlyStopping

__all__ = ["__version__", "build", "mix", "open", "pipe"]

_LAZY = {  # name -> its module, imported when it is first asked for: preparation and reading need none of them
    "BudgetGuard": "shardprep.budget",
    "EarlyStopping": "shardprep.stopping",
    "pilot": "shardprep.piloting",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
