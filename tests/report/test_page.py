from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from shardprep.core.manifest import parse
from shardprep.report.chart import Bar, Level, bar_chart, round_steps, thinned
from shardprep.report.page import html_page
from shardprep.report.pictures import MOST_SHARD_BARS, percent, shard_picture

VOID = {"meta", "br", "hr", "img", "link"}


class Balanced(HTMLParser):
    """Fails on tags that are not closed in order; gathers what would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> Balanced:
    balanced = Balanced()
    balanced.feed(page)
    assert balanced.open == []
    return balanced


def pictures(page: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_the_page_stands_alone(natural) -> None:
    page = html_page(natural)
    balanced = read(page)
    assert balanced.loads == []
    assert "script" not in balanced.tags
    assert "url(" not in page
    assert "@import" not in page


def test_every_picture_is_said_in_words_too(natural) -> None:
    page = html_page(natural)
    drawn = pictures(page)
    assert len(drawn) == 4  # lengths, padding, and the shards of two splits
    for picture in drawn:
        assert picture.attrib["role"] == "img"
        assert picture[0].tag == "title"
        assert picture[0].text
        assert picture[1].tag == "desc"
        assert picture[1].text
    assert "edges of 32 length buckets" in page


def test_bars_stay_inside_the_picture(natural) -> None:
    for picture in pictures(html_page(natural)):
        _, _, width, height = map(float, picture.attrib["viewBox"].split())
        rects = picture.findall("rect")
        assert rects
        for rect in rects:
            x, y, w, h = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            assert w > 0
            assert h >= 0
            assert x >= 0
            assert y >= 0
            assert x + w <= width
            assert y + h <= height


def test_labels_do_not_overlap(natural) -> None:
    for picture in pictures(html_page(natural)):
        middles = [t for t in picture.findall("text") if t.attrib.get("text-anchor") == "middle"]
        spans = [(float(t.attrib["x"]), len(t.text or "") * 7.2 / 2) for t in middles]
        for (x, half), (following, other) in itertools.pairwise(spans):
            assert x + half < following - other


def test_bars_of_the_histogram_count_every_row_once(natural) -> None:
    lengths = pictures(html_page(natural))[0]
    titles = [rect[0].text or "" for rect in lengths.findall("rect")]
    assert sum(int(title.split(": ")[1].split()[0].replace(",", "")) for title in titles) == 3000


def test_the_same_manifest_makes_the_same_page_also_when_read_back(natural) -> None:
    assert html_page(natural) == html_page(natural) == html_page(parse(natural.to_bytes()))


def test_the_ledger_names_reasons_in_plain_words(natural) -> None:
    page = html_page(replace(natural, ledger=replace(natural.ledger, tokens_cut=10, documents_cut=2)))
    assert "not valid JSON (invalid_json)" in page
    assert "10 tokens of 2 documents were cut off" in page


def test_duplicates_are_shown_where_there_are_any(natural) -> None:
    assert "Duplicates" not in html_page(replace(natural, duplicates={"ids": 0, "ids_examples": []}))
    assert "<td>ids examples</td>" in html_page(replace(natural, duplicates={"ids": 2, "ids_examples": ["a"]}))


def test_names_from_the_data_are_escaped(natural) -> None:
    nasty = "<script>alert(1)</script>&"
    page = html_page(
        replace(natural, settings={"text_field": nasty}, warnings=(nasty,), duplicates={"ids": {"first": [nasty]}})
    )
    read(page)
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 3


@pytest.mark.parametrize("lengths", [[1], [5], [1, 1, 1], [1, 2], [8192], [1, 100_000]])
def test_odd_data_sets_have_a_page(make_manifest, make_split, lengths) -> None:
    page = html_page(make_manifest(make_split("train", lengths, 1)))
    read(page)
    assert len(pictures(page)) == 3


def test_a_data_set_without_rows_has_a_page(make_manifest, make_split) -> None:
    page = html_page(make_manifest(make_split("train", [], 1), set_aside={"empty_text": 4}))
    read(page)
    assert pictures(page) == []
    assert "the text is empty (empty_text)" in page


def test_very_many_shards_share_bars() -> None:
    picture = ET.fromstring(shard_picture("train", list(range(1000, 11_000))))
    bars = picture.findall("rect")
    assert len(bars) == MOST_SHARD_BARS
    assert (bars[-1][0].text or "").endswith(": 10,999 tokens")


@pytest.mark.parametrize(
    ("top", "steps"),
    [
        (0, [0, 1]),
        (1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (7, [0, 2, 4, 6, 8]),
        (100, [0, 20, 40, 60, 80, 100]),
        (101, [0, 50, 100, 150]),
    ],
)
def test_steps_are_round_and_reach_the_top(top, steps) -> None:
    assert round_steps(top) == pytest.approx(steps)
    assert round_steps(3, finest=1.0) == [0, 1, 2, 3]


def test_lines_that_are_too_near_are_left_out() -> None:
    assert thinned([0.5, 0.1, 0.11, 0.3], 0.1) == [0.1, 0.3, 0.5]


def test_a_level_above_all_bars_is_inside_the_picture() -> None:
    drawn = bar_chart(
        title="t", description="d", bars=[Bar(0, 1, 1.0, "one")], x_label="x", x_ticks=[(0, "a")], y_label="y",
        y_format=str, level=Level(80, "high"),
    )  # fmt: skip
    line = next(e for e in ET.fromstring(drawn).findall("line") if e.attrib["class"] == "level")
    assert 0 < float(line.attrib["y1"]) < 60


def test_shares_read_well() -> None:
    assert [percent(x) for x in (0, 0.0004, 0.025, 0.694, 1)] == ["0.0 %", "< 0.1 %", "2.5 %", "69 %", "100 %"]
