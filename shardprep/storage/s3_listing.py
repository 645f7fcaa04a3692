"""List a prefix of S3 with few requests, and many at once where there is much to list.

S3 gives 1,000 keys a request, in the order of their bytes, one page after the other. So a range of keys is listed page
by page; one that is not at its end after 10 pages is cut in up to 16 pieces, each of which begins after one text and ends
with another. Where to cut is asked for: the keys that are left differ from the last one seen at some place; requests for
one key each tell the first such place and the signs that stand there. This needs no folders, and no folder costs a
request of its own. Small listings take ceil(n / 1000) requests, large ones at most about twice as many, 16 at a time.
Stores that give keys in another order (S3 Express, some servers) are listed page by page to the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Protocol

SPLIT_AFTER_PAGES = 10
PIECES = 16
PAGES_AT_ONCE = 16
EDGES_MAX = 64
LAST_SIGN = "\U0010ffff"  # sorts after every other


@dataclass(frozen=True, slots=True)
class Page:
    """One answer: keys, sizes in bytes, ETags, and the token of the next page."""

    keys: list[str]
    sizes: list[int]
    etags: list[str]
    next_token: str | None = None

    def starting_with(self, prefix: str) -> Page:
        """Return the part of the page whose keys begin with prefix."""
        keep = [i for i, key in enumerate(self.keys) if key.startswith(prefix)]
        return Page([self.keys[i] for i in keep], [self.sizes[i] for i in keep], [self.etags[i] for i in keep])


class GetPage(Protocol):
    """Ask for the keys that begin with prefix and come after `after`, or for the page of a token."""

    def __call__(self, prefix: str, *, after: str = "", token: str | None = None, max_keys: int = 1000) -> Page:
        """Return the page."""


@dataclass(frozen=True, slots=True)
class _Range:
    """What is left of the keys after `after` up to `stop` (inclusive; None: to the end of the prefix)."""

    after: str = ""
    stop: str | None = None
    token: str | None = None
    pages: int = 0
    can_split: bool = True

    def holds(self, key: str) -> bool:
        return self.stop is None or _order(key) <= _order(self.stop)


def list_pages(get_page: GetPage, prefix: str) -> Iterator[Page]:
    """Yield all pages under prefix, in any order; each key once."""
    with ThreadPoolExecutor(PAGES_AT_ONCE, thread_name_prefix="shardprep-list") as pool:
        waiting = [_Range()]
        running: set[Future[tuple[Page | None, list[_Range]]]] = set()
        try:
            while waiting or running:
                while waiting and len(running) < PAGES_AT_ONCE:
                    running.add(pool.submit(_step, get_page, prefix, waiting.pop()))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    page, ranges = future.result()
                    waiting.extend(ranges)
                    if page is not None and page.keys:
                        yield page
        finally:
            pool.shutdown(cancel_futures=True)


def _step(get_page: GetPage, prefix: str, wanted: _Range) -> tuple[Page | None, list[_Range]]:
    """Return the next page of a range, cut at its end, and what is left of the range; or the pieces of a long one."""
    if wanted.pages >= SPLIT_AFTER_PAGES and wanted.can_split:
        return None, _split(get_page, prefix, wanted)
    page = get_page(prefix, after=wanted.after if wanted.token is None else "", token=wanted.token)
    if wanted.stop is not None and page.keys and not wanted.holds(page.keys[-1]):
        return _cut(page, wanted.stop), []
    if page.next_token is None:
        return page, []
    rest = replace(wanted, token=page.next_token, pages=wanted.pages + 1)
    if page.keys:
        is_ordered = page.keys == sorted(page.keys, key=_order) and _order(page.keys[0]) > _order(wanted.after)
        rest = replace(rest, after=page.keys[-1], can_split=wanted.can_split and is_ordered)
    return page, [rest]


def _split(get_page: GetPage, prefix: str, wanted: _Range) -> list[_Range]:
    """Return pieces of a range; the first goes on with its token."""
    edges = _edges(get_page, prefix, wanted)
    if not edges:
        return [replace(wanted, can_split=False)]
    cuts = edges[:: -(-len(edges) // (PIECES - 1))]
    first = replace(wanted, stop=cuts[0], pages=0)
    return [first, *(_Range(after, stop) for after, stop in zip(cuts, [*cuts[1:], wanted.stop], strict=True))]


def _edges(get_page: GetPage, prefix: str, wanted: _Range) -> list[str]:
    """Return texts in order that part the rest of a range; each ends what begins like some key of it."""

    def first_beyond(beginning: str) -> str | None:
        """Return the first key of the range after all that begin like this."""
        keys = get_page(prefix, after=beginning + LAST_SIGN, max_keys=1).keys
        return keys[0] if keys and wanted.holds(keys[0]) else None

    seen = wanted.after
    # All keys left begin with seen[:same]; the shortest beginning that some do not share is looked for by halves.
    same, differs = len(prefix), len(seen)
    beyond = first_beyond(seen)
    while same + 1 < differs:
        middle = (same + differs) // 2
        found = first_beyond(seen[:middle])
        if found is None:
            same = middle
        else:
            differs, beyond = middle, found
    edges: list[str] = []
    beginning = seen[:differs]
    while beyond is not None and len(edges) < EDGES_MAX:
        edges.append(beginning + LAST_SIGN)
        beginning = beyond[:differs]
        beyond = first_beyond(beginning)
    return edges


def _cut(page: Page, stop: str) -> Page:
    end = bisect_right(page.keys, _order(stop), key=_order)
    return Page(page.keys[:end], page.sizes[:end], page.etags[:end])


def _order(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")
