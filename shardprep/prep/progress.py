"""Progress for people: one bar a stage on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from tqdm import tqdm


class Bar:
    """A bar over units of work; quiet unless standard error is a terminal or `shown` says otherwise."""

    def __init__(self, what: str, total: int | None, unit: str, *, shown: bool | None) -> None:
        quiet = not sys.stderr.isatty() if shown is None else not shown
        self._bar = tqdm(total=total, desc=what, unit=unit, unit_scale=True, disable=quiet, dynamic_ncols=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def advance(self, count: int, **figures: str) -> None:
        """Add to what is done, and show figures beside the bar."""
        if figures:
            self._bar.set_postfix(figures, refresh=False)
        self._bar.update(count)

    def reach(self, count: int) -> None:
        """Set what is done."""
        self._bar.update(count - self._bar.n)
