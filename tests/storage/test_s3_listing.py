"""Listing by pages and pieces, against a sorted list of keys."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.storage import s3_listing
from shardprep.storage.s3_listing import Page, list_pages


class FakeS3:
    """LIST as S3 does it: keys in the order of their bytes, pages of `size`."""

    def __init__(self, keys: list[str], size: int, *, is_ordered: bool = True, latency_s: float = 0) -> None:
        self.keys = sorted(set(keys), key=str.encode) if is_ordered else list(dict.fromkeys(keys))
        self.size = size
        self.latency_s = latency_s
        self.is_ordered = is_ordered
        self.requests = self.now = self.most = 0
        self.lock = threading.Lock()

    def page(self, prefix: str, *, after: str = "", token: str | None = None, max_keys: int = 1000) -> Page:
        with self.lock:
            self.requests += 1
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.latency_s)
        try:
            place = int(token) if token else 0
            if self.is_ordered:
                place = max(place, bisect_right(self.keys, after.encode(), key=str.encode))
                place = max(place, bisect_left(self.keys, prefix.encode(), key=str.encode))
            keys = [key for key in self.keys[place:] if key.startswith(prefix)] if len(self.keys) < 1000 else []
            size = min(self.size, max_keys)
            if not keys:
                keys = [key for key in self.keys[place : place + size + 1] if key.startswith(prefix)]
            rest = keys[size:]
            keys = keys[:size]
            return Page(keys, [1] * len(keys), [""] * len(keys), str(self.keys.index(rest[0], place)) if rest else None)
        finally:
            with self.lock:
                self.now -= 1


KEYS = st.lists(st.text(alphabet="ab/.é0-", min_size=1, max_size=7), max_size=200)


@settings(deadline=None)
@given(KEYS, st.sampled_from(["", "a", "a/", "b", "/"]), st.sampled_from([1, 2, 5]), st.integers(0, 3), st.booleans())
def test_every_key_once(keys: list[str], prefix: str, size: int, split_after: int, is_ordered: bool):
    server = FakeS3(keys, size, is_ordered=is_ordered)
    before = s3_listing.SPLIT_AFTER_PAGES
    s3_listing.SPLIT_AFTER_PAGES = split_after if is_ordered else before
    try:
        got = Counter(key for page in list_pages(server.page, prefix) for key in page.keys)
    finally:
        s3_listing.SPLIT_AFTER_PAGES = before
    assert got == Counter(key for key in set(keys) if key.startswith(prefix))


@pytest.mark.parametrize(
    ("objects", "folders", "most"), [(2500, 25, 3), (9999, 400, 10), (0, 1, 1), (10_000, 10_000, 12)]
)
def test_small_listings_take_a_request_per_thousand(objects: int, folders: int, most: int):
    server = FakeS3([f"raw/{n % folders:05}/{n:07}.json" for n in range(objects)], 1000)
    assert sum(len(page.keys) for page in list_pages(server.page, "raw/")) == objects
    assert server.requests <= most


@pytest.mark.parametrize("folders", [1, 40, 5_000, 60_000])
def test_large_listings_take_many_requests_at_once_but_not_many_more(folders: int):
    server = FakeS3([f"raw/2024/{n % folders:05}/{n:07}.json" for n in range(60_000)], 100, latency_s=0.001)
    assert sum(len(page.keys) for page in list_pages(server.page, "raw/")) == 60_000
    assert server.requests < 2 * 600
    assert server.most > 4


def test_one_long_name_and_many_short_ones():
    server = FakeS3(["p/" + "x" * 900 + f"{n:06}" for n in range(3000)] + [f"p/{n}" for n in range(3000)], 10)
    assert sum(len(page.keys) for page in list_pages(server.page, "p/")) == 6000
    assert server.requests < 2 * 600


def test_a_consumer_who_stops_early_leaves_no_thread():
    server = FakeS3([f"raw/{n % 100}/{n:07}.json" for n in range(50_000)], 100)
    pages = list_pages(server.page, "raw/")
    next(pages)
    pages.close()  # type: ignore[attr-defined]


def test_an_error_ends_the_listing():
    def broken(prefix: str, **_: object) -> Page:
        raise OSError(prefix)

    with pytest.raises(OSError, match="raw/"):
        list(list_pages(broken, "raw/"))
