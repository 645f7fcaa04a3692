"""Events of several kinds, each evenly spaced, merged in the order of their times: which set of a mix plays a round."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

UNIT = 2**32  # of time: between two events of a kind
BLOCK_EVENTS = 1_024  # merged at once; two blocks are kept


class Interleaving:
    """So many events of each kind, evenly spaced with a phase, merged in the order of their times; exact integers.

    counts  events of each kind, at least 1 each
    phases  time of each kind's first event, 0 to UNIT (exclusive), of UNIT x its spacing
    last    the kind whose last event comes after all others
    """

    def __init__(self, counts: Sequence[int], phases: Sequence[int], last: int) -> None:
        self.counts, self.total = tuple(counts), sum(counts)
        whole = prod(counts)
        self._spacing = [whole // count for count in counts]
        self._phases = [UNIT if i == last else phase for i, phase in enumerate(phases)]
        self._end = UNIT * whole
        self._blocks: dict[int, list[tuple[int, int]]] = {}

    def place(self, kind: int, number: int) -> int:
        """Return the place of an event in the order: of two at one time the lower kind comes first."""
        time = (number * UNIT + self._phases[kind]) * self._spacing[kind]
        return sum(number if k == kind else self._before(k, time + (k < kind)) for k in range(len(self.counts)))

    def event(self, place: int) -> tuple[int, int]:
        """Return kind and number of the event at a place."""
        block, within = divmod(place, BLOCK_EVENTS)
        found = self._blocks.get(block)
        if found is None:
            found = self._merged(block)
            kept = [*self._blocks.items()][-1:]
            self._blocks = {**dict(kept), block: found}  # a new one: other threads may be looking at the old one
        return found[within]

    def counts_before(self, place: int) -> list[int]:
        """Return how many events of each kind come before a place."""
        low, high = 0, self._end + 1  # the first time by which so many are past, found by halving
        while low < high:
            middle = (low + high) // 2
            if sum(self._before(k, middle) for k in range(len(self.counts))) < place:
                low = middle + 1
            else:
                high = middle
        counts = [self._before(k, low) for k in range(len(self.counts))]
        for kind in reversed(range(len(counts))):  # too many only by events of one time: the higher kinds come later
            if sum(counts) > place and self._before(kind, low - 1) < counts[kind]:
                counts[kind] -= 1
        return counts

    def _before(self, kind: int, time: int) -> int:
        """Return how many events of a kind come before a time."""
        spacing = self._spacing[kind]
        past = -(-(time - self._phases[kind] * spacing) // (UNIT * spacing))
        return min(max(past, 0), self.counts[kind])

    def _merged(self, block: int) -> list[tuple[int, int]]:
        counts = self.counts_before(block * BLOCK_EVENTS)
        size = min(BLOCK_EVENTS, self.total - block * BLOCK_EVENTS)
        ends = self.counts_before(block * BLOCK_EVENTS + size)
        times = [
            ((number * UNIT + self._phases[kind]) * self._spacing[kind], kind, number)
            for kind, (first, stop) in enumerate(zip(counts, ends, strict=True))
            for number in range(first, stop)
        ]
        return [(kind, number) for _, kind, number in sorted(times)]
