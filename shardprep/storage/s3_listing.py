"""List a prefix of S3 with few requests, and many at once where there is much to list.

S3 gives 1,000 keys a request, in the order of their bytes, one page after the other. So a range of keys is listed page
by page; one that is not at its end after 10 pages is cut in up to 16 pieces at the names of its folders, which one more
request tells. A piece begins after one key and ends with another, so no folder costs a request of its own. Small
listings take ceil(n / 1000) requests, large ones at most about twice as many, 16 at a time. Stores that give keys in
another order (S3 Express, some servers) are listed page by page to the end.
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


@dataclass(frozen=True, slots=True)
class Page:
    """One answer: keys, sizes in bytes, ETags; folders (common prefixes) if asked for; the token of the next page."""

    keys: list[str]
    sizes: list[int]
    etags: list[str]
    folders: list[str]
    next_token: str | None = None

    def starting_with(self, prefix: str) -> Page:
        """Return the part of the page whose keys begin with prefix."""
        keep = [i for i, key in enumerate(self.keys) if key.startswith(prefix)]
        return Page([self.keys[i] for i in keep], [self.sizes[i] for i in keep], [self.etags[i] for i in keep], [])


class GetPage(Protocol):
    """Ask for the keys that begin with prefix and come after `after`, or for the page of a token.

    With by_folder only the next level is told: what lies in a folder is one entry.
    """

    def __call__(self, prefix: str, *, after: str = "", token: str | None = None, by_folder: bool = False) -> Page:
        """Return the page."""


@dataclass(frozen=True, slots=True)
class _Range:
    """What is left of the keys after `after` up to `stop` (inclusive; None: to the end of the prefix)."""

    after: str = ""
    stop: str | None = None
    token: str | None = None
    pages: int = 0
    can_split: bool = True


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
    if wanted.stop is not None and page.keys and _order(page.keys[-1]) >= _order(wanted.stop):
        return _cut(page, wanted.stop), []
    if page.next_token is None:
        return page, []
    rest = replace(wanted, token=page.next_token, pages=wanted.pages + 1)
    if page.keys:
        is_ordered = page.keys == sorted(page.keys, key=_order) and _order(page.keys[0]) > _order(wanted.after)
        rest = replace(rest, after=page.keys[-1], can_split=wanted.can_split and is_ordered)
    return page, [rest]


def _split(get_page: GetPage, prefix: str, wanted: _Range) -> list[_Range]:
    edges = _edges(get_page, prefix, wanted)
    if not edges:
        return [replace(wanted, can_split=False)]
    cuts = edges[:: -(-len(edges) // (PIECES - 1))]
    # The first piece goes on with its token. A piece ends with its last key: the marker of the folder that comes next.
    first = replace(wanted, stop=cuts[0], pages=0)
    return [first, *(_Range(after, stop) for after, stop in zip(cuts, [*cuts[1:], wanted.stop], strict=True))]


def _edges(get_page: GetPage, prefix: str, wanted: _Range) -> list[str]:
    """Return names of folders inside a range, in order; the folder that the range begins in is entered if need be."""
    while True:
        page = get_page(prefix, after=wanted.after, by_folder=True)
        after, stop = _order(wanted.after), None if wanted.stop is None else _order(wanted.stop)
        inside = [f for f in page.folders if _order(f) > after and (stop is None or _order(f) < stop)]
        entered = [f for f in page.folders if len(f) > len(prefix) and wanted.after.startswith(f)]
        if inside or not entered:
            return sorted(inside, key=_order)
        prefix = entered[0]


def _cut(page: Page, stop: str) -> Page:
    end = bisect_right(page.keys, _order(stop), key=_order)
    return Page(page.keys[:end], page.sizes[:end], page.etags[:end], [])


def _order(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")
