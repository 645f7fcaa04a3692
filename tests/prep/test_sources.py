"""What SOURCE and --source-list mean for local files, and the table that a listing becomes."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from shardprep.core.plan import object_name
from shardprep.errors import ConfigError, Denied, NotFound, SourceError
from shardprep.formats.documents import Reason
from shardprep.prep.globs import to_regex
from shardprep.prep.source_table import TableBuilder
from shardprep.prep.sources import list_source
from shardprep.storage.store import Listing, open_store
from tests.prep.builds import build_here, rows_of, text_of

C14 = Path(__file__).parents[1] / "cases" / "C14"


def names(listed):
    table = listed.table
    keys = table.keys.to_pylist()
    return [object_name(table.labels[root], key) for root, key in zip(table.root.tolist(), keys, strict=True)]


@pytest.fixture
def tree(tmp_path):
    """A folder of small files; returns the function that adds one."""

    def add(name, text='{"text":"a"}'):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    for name in ("b.json", "a.json", "sub/c.json", "sub/deep/d.jsonl", "_SUCCESS", "sub/._e.json", "sub/.DS_Store"):
        add(name)
    return add


def test_c14_tree():
    listed = list_source(str(C14 / "tree"))
    assert names(listed) == ["a.json", "sub/b.json", "sub/empty.json"]
    assert listed.counters["side_files"] == 3
    assert (listed.counters["objects"], listed.counters["bytes"], listed.kind) == (3, 49, "objects")


def test_a_folder_in_any_spelling(tree, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in (str(tmp_path), f"{tmp_path}/", f"file://{tmp_path}", ".", "./sub/.."):
        listed = list_source(source)
        assert names(listed) == ["a.json", "b.json", "sub/c.json", "sub/deep/d.jsonl"]
        assert listed.table.roots == (str(tmp_path),)
        assert listed.table.labels == ("",)
    etag = (tmp_path / "a.json").stat().st_mtime_ns
    assert listed.table.etags[0].as_py() == str(etag)
    assert listed.table.sizes.tolist() == [12] * 4


def test_a_single_file_is_read_whatever_its_name(tree, tmp_path):
    for name in ("a.json", "_SUCCESS", "sub/.DS_Store"):
        listed = list_source(str(tmp_path / name))
        assert names(listed) == [name.rpartition("/")[2]]
        assert listed.counters["side_files"] == 0


@pytest.mark.parametrize(
    "name", ["file[1].json", "what?.json", "a*b.json", "tab\there.json", "back\\x41slash.json", "日本.json"]
)
def test_a_path_that_exists_is_that_path(tree, tmp_path, name):
    path = tree(name, name)
    tree("other.json")
    table = list_source(str(path)).table
    assert table.roots == (str(tmp_path),)
    assert [open_store(table.roots[0]).get(key) for key in table.keys.to_pylist()] == [name.encode()]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.json", ["a.json", "b.json"]),
        ("?.json", ["a.json", "b.json"]),
        ("[!a].json", ["b.json"]),
        ("[a-b].json", ["a.json", "b.json"]),
        ("**/*.json", ["a.json", "b.json", "sub/c.json"]),
        ("**", ["a.json", "b.json", "sub/c.json", "sub/deep/d.jsonl"]),
        ("sub/**/*.jsonl", ["deep/d.jsonl"]),
        ("sub/*", ["c.json"]),
        ("s*/", ["sub/c.json", "sub/deep/d.jsonl"]),
        ("_*", ["_SUCCESS"]),
        ("*/.DS_*", ["sub/.DS_Store"]),
        ("sub/d*/d.jsonl", ["deep/d.jsonl"]),
    ],
)
def test_globs(tree, tmp_path, pattern, expected):
    assert names(list_source(f"{tmp_path}/{pattern}")) == expected


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a.json", "aXjson", False),
        ("*.json", "a/b.json", False),
        ("a/**", "a/b/c", True),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/x/y/c", True),
        ("a/**/c", "ac", False),
        ("[]x]", "]", True),
        ("[!]x]", "]", False),
        ("[a-]", "-", True),
        ("[^a]", "a", False),
        ("[!a]", "/", False),
        ("+(a)$^|{1}", "+(a)$^|{1}", True),
        ("a\nb*", "a\nbc", True),
        ("é?", "éö", True),
    ],
)
def test_what_a_pattern_matches(pattern, key, matches):
    assert pc.match_substring_regex(pa.array([key]), to_regex(pattern)).to_pylist() == [matches]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere", "no such file or folder: nowhere"),
        ("a.json/", "no such file or folder: a.json/"),
        ("nowhere/*.json", "no such folder: "),
        ("*.parquet", r"no objects in \*.parquet"),
        ("sub/dee*", r"matches folders only; to read what is in them, add /\*\*"),
        ("empty", "no objects in empty"),
        ("only_side", '2 side files .names that start with "." or "_".'),
    ],
)
def test_what_is_not_there_is_named(tree, tmp_path, monkeypatch, source, words):
    tree("only_side/_a")
    tree("only_side/.b")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=words):
        list_source(source)


def test_calls_that_cannot_be_meant(tree, tmp_path):
    for call in (
        {"source": None},
        {"source": "a", "source_list": "b"},
        {"source": " "},
        {"source": "s3://"},
        {"source": "x[ab*"},
    ):
        with pytest.raises((ConfigError, SourceError)):
            list_source(**call)
    for source in (tmp_path, tmp_path / "a.json", tmp_path / "*.json"):
        with pytest.raises(SourceError, match=r"manifest\.json"):
            list_source(str(source), source_format="inventory")


def test_a_list_file(tree, tmp_path):
    elsewhere = tree("more/z.json")
    entries = [
        "# a comment", "", "  sub/c.json  ", f"{elsewhere}", "./a.json\r", "sub/../a.json", "missing.json",
        f"file://{tmp_path}/b.json", "sub/", "sub", "_SUCCESS",
    ]  # fmt: skip
    listing = tree("lists.txt", "\ufeff" + "\n".join(entries))
    listed = list_source(None, source_list=str(listing))
    assert names(listed) == ["_SUCCESS", "a.json", "b.json", "more/z.json", "sub/c.json"]
    assert listed.table.roots == (str(tmp_path),)
    assert listed.counters["listed_twice"] == 1
    assert listed.table.sizes.tolist() == [12] * 5
    assert [(name, reason) for name, reason, _ in listed.rejects] == [
        ("sub/", Reason.UNUSABLE_KEY), ("missing.json", Reason.MISSING_OBJECT), ("sub", Reason.MISSING_OBJECT),
    ]  # fmt: skip
    assert "line 9" in listed.rejects[0][2]
    assert str(tmp_path / "missing.json") in listed.rejects[1][2]
    assert "folder" in listed.rejects[2][2]


def test_a_list_file_names_below_the_common_folder(tree, tmp_path):
    listing = tree("elsewhere/list.txt", "../sub/c.json\n../sub/deep/d.jsonl\n")
    assert names(list_source(None, source_list=str(listing))) == ["c.json", "deep/d.jsonl"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "names no object"),
        ("# nothing\n\n", "names no object"),
        ("x.json\ny.json", "none of the 2 objects"),
        (None, "is not there"),
    ],
)
def test_a_list_file_that_is_of_no_use(tree, tmp_path, content, words):
    listing = tmp_path / "list.txt" if content is None else tree("list.txt", content)
    with pytest.raises(SourceError, match=words):
        list_source(None, source_list=str(listing))


def test_a_list_file_that_is_no_text(tmp_path):
    (tmp_path / "list").write_bytes(b"a.json\n\xff\xfe\n")
    with pytest.raises(SourceError, match="line 2: not UTF-8"):
        list_source(None, source_list=str(tmp_path / "list"))


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        ('{"source-ref":"s3://b/a.txt","class":0}', "augmented"),
        ('\ufeff\n{"source-ref":"s3://b/a.txt"}', "augmented"),
        ('{"source":"the text"}', "augmented"),
        ('{"source":"the text","class":1,"class-metadata":{}}', "augmented"),
        ('{"source":"wikipedia","text":"the text"}', "objects"),
        ('{"source":1}', "objects"),
        ('{"text":"a"}', "objects"),
        ("[1]", "objects"),
        ("no json", "objects"),
    ],
)
def test_augmented_manifests_are_told_by_their_first_line(tree, first, kind):
    path = tree("train.manifest", first + "\n" + first + "\n")
    listed = list_source(str(path))
    assert (listed.kind, names(listed)) == (kind, ["train.manifest"])
    assert list_source(str(path), source_format="objects").kind == "objects"
    assert list_source(str(path), source_format="augmented-manifest").kind == "augmented"


def test_links_to_nothing_are_listed_and_loops_end(tree, tmp_path):
    (tmp_path / "dangling.json").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert "dangling.json" in names(list_source(str(tmp_path)))


def page(keys, sizes=None, etags=None):
    count = len(keys)
    numbers = np.array(sizes if sizes is not None else [1] * count, np.int64)
    return Listing(pa.array(keys, pa.string()), numbers, pa.array(etags or [""] * count, pa.string()))


def test_the_order_of_a_listing_does_not_matter():
    keys = [f"{i % 7}/é{i}" for i in range(500)] + ["Z", "a", "\U0001f600", "\uffff", "a b", "A/"]
    rng, tables = random.Random(1), []
    for _ in range(3):
        rng.shuffle(keys)
        builder = TableBuilder()
        for start in range(0, len(keys), 37):
            part = keys[start : start + 37]
            builder.add("s3://b", page(part, [len(k) for k in part], [k[::-1] for k in part]))
        tables.append(builder.build())
    assert tables[0].keys.to_pylist() == sorted(keys, key=str.encode)
    for table in tables:
        assert table.keys.equals(tables[0].keys)
        assert table.etags.to_pylist() == [key[::-1] for key in table.keys.to_pylist()]
        assert table.sizes.tolist() == [len(key) for key in table.keys.to_pylist()]


def test_markers_side_files_repeats_and_odd_keys_are_counted():
    builder = TableBuilder()
    builder.add(
        "s3://b", page(["raw/", "raw/sub//", "raw/full/", "raw//c", "raw/_x", "_y/z", "raw/a"], [0, 0, 5, 1, 1, 1, 1])
    )
    builder.add("s3://b", page(["raw/a", "raw/new\nline"]))
    table = builder.build()
    assert table.keys.to_pylist() == ["_y/z", "raw//c", "raw/a", "raw/full/", "raw/new\nline"]
    counters = builder.counters.as_dict(table)
    assert (counters["markers"], counters["side_files"], counters["listed_twice"], counters["odd_keys"]) == (2, 1, 1, 3)
    assert counters["objects"] == 5


def test_several_roots_are_told_apart_by_their_buckets():
    builder = TableBuilder()
    for root in ("s3://two", "gs://two", "s3://one", "/data"):
        builder.add(root, page(["k"]))
    table = builder.build()
    assert table.roots == ("/data", "gs://two", "s3://one", "s3://two")
    assert table.labels == ("local", "gs/two", "one", "s3/two")


class ManyObjects:
    """A bucket of a million objects that exists only as pages."""

    uri = "s3://b"
    requests_in_flight = 16

    def head(self, key):
        raise NotFound(key)

    def list(self, prefix, *, on_progress=None):
        assert prefix == "raw/"
        for number in range(100):
            folder = (number * 37) % 100
            keys = [f"raw/{folder:04}/part-{i:08}-0123456789abcdef.json" for i in range(1_000)]
            yield page(keys, [3_000] * 1_000, [f'"{number * 1_000 + i:032x}"' for i in range(1_000)])


def test_a_table_takes_at_most_200_bytes_an_object():
    seen = []
    listed = list_source("s3://b/raw", open_store=lambda uri, **_: ManyObjects(), on_progress=seen.append)
    table = listed.table
    used = table.keys.nbytes + table.etags.nbytes + table.sizes.nbytes + table.root.nbytes
    assert len(table) == 100_000
    assert used <= 200 * len(table)
    assert seen == [1_000 * (i + 1) for i in range(100)]


class Guarded:
    """A bucket in which only some keys may be read."""

    uri = "s3://b"
    requests_in_flight = 4

    def __init__(self, readable):
        self.readable = readable

    def head(self, key):
        if key in self.readable:
            return 5, '"tag"'
        raise Denied(f"access to {key} is denied")

    def local_path(self, key):
        return None


def test_a_list_with_objects_that_may_not_be_read(tree):
    listing = str(tree("list.txt", "s3://b/open.json\ns3://b/closed.json\n"))

    def opener(readable):
        return lambda uri, **_: Guarded(readable) if uri == "s3://b" else open_store(uri)

    listed = list_source(None, source_list=listing, open_store=opener({"open.json"}))
    assert names(listed) == ["open.json"]
    assert listed.rejects == [("closed.json", Reason.ACCESS_DENIED, "access to closed.json is denied")]
    with pytest.raises(Denied):  # nothing may be read: the credentials are wrong, not the list
        list_source(None, source_list=listing, open_store=opener(set()))


def test_a_backslash_in_a_list_is_what_it_says(tmp_path: Path):
    r"""A file called `a\x41.json`, beside one called `aA.json`; and the only way to write a byte that is no UTF-8."""
    folder = tmp_path / r"in\x42"
    folder.mkdir()
    for name in (r"a\x41.json", "aA.json", r"b\n.json"):
        (folder / name).write_text(json.dumps({"text": name}))
    Path(os.fsdecode(os.fsencode(folder) + b"/\xe9.json")).write_text('{"text": "odd"}')
    lines = [str(folder / name) for name in (r"a\x41.json", r"b\n.json", r"\xe9.json")]
    (tmp_path / "list").write_text("\n".join(lines))
    listed = list_source(None, source_list=str(tmp_path / "list"))
    assert listed.rejects == []
    assert listed.table.roots == (str(folder),)
    store = open_store(listed.table.roots[0])
    texts = [json.loads(store.get(key))["text"] for key in listed.table.keys.to_pylist()]
    assert sorted(texts) == sorted([r"a\x41.json", r"b\n.json", "odd"])


def test_a_backslash_in_a_source_ref_is_what_it_says(tmp_path: Path):
    for name in (r"a\x41.txt", "aA.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    (tmp_path / "in.manifest").write_text(json.dumps({"source-ref": str(tmp_path / r"a\x41.txt")}) + "\n")
    build_here(tmp_path / "in.manifest", tmp_path / "out", id_field=None)
    assert [text_of(row) for row in rows_of(tmp_path / "out")] == [r"text of a\x41.txt"]
