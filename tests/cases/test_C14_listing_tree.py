import os
import shutil

from tests.cases.command import build, refused
from tests.cases.inputs import HERE, line, write

TREE = HERE / "C14/tree"


def test_side_files_are_counted_and_the_empty_object_too(tmp_path):
    for source in (TREE, f"{TREE}/", f"{TREE}/**/*.json"):
        dataset = build(source, tmp_path / f"out{len(str(source))}")
        assert dataset.ids == {"a", "b"}
        assert dataset.reasons == {"empty_object": 1}
        assert dataset.places == [("sub/empty.json", None)]
    dataset = build(TREE, tmp_path / "again")
    assert dataset.ledger["objects"]["side_files"] == 3
    assert dataset.ledger["objects"]["markers"] == 0


def test_strict_names_the_empty_object(tmp_path):
    assert "sub/empty.json" in refused(TREE, tmp_path / "out", "--on-bad", "fail")


NAMES = [
    "with space.json", "tab\there.json", "new\nline.json", "50%.json", "50%25.json", "a+b.json", "q?x=1#y.json", "star*.json",
    "[x].json", "back\\slash.json", "back\\x41.json", "quote'\".json", "caf\u00e9.json", "cafe\u0301.json", "\u6587\u5b57.json",
    "\U0001f600.json", "-rf.json", "no ending", "x.JSON", "deep/er/and deeper/~home.json", "a&b;c|d.json", "{b}.json",
]  # fmt: skip


def test_file_names_of_every_kind(tmp_path):
    for i, name in enumerate(NAMES):
        write(tmp_path / "in" / name, line(f"n{i}", name))
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert {i: dataset.text(i) for i in dataset.ids} == {f"n{i}": name for i, name in enumerate(NAMES)}
    listed = tmp_path / "list.txt"
    # A list says names as messages and ids do: there "\\x41" is the byte 0x41.
    in_list = {f"n{i}": name for i, name in enumerate(NAMES) if "\n" not in name and "\\x41" not in name}
    listed.write_text("".join(f"{tmp_path}/in/{name}\n" for name in in_list.values()))
    again = build(None, tmp_path / "listed", "--source-list", listed)
    assert {i: again.text(i) for i in again.ids} == in_list


def test_names_that_are_no_utf8_are_read_and_named(tmp_path):
    folder = os.fsencode(tmp_path / "in")
    os.makedirs(folder)
    for name, data in (
        (b"good\xff.json", line("g", "good")),
        (b"bad\xe9.json", b"broken"),
        (b"caf\xc3\xa9.json", line("c", "x")),
    ):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.ids == {"g", "c"}
    assert dataset.places == [(r"bad\xe9.json", None)] or dataset.places == [(r"bad\xe9.json", 1)]
    assert r"bad\xe9.json" in refused(tmp_path / "in", tmp_path / "strict", "--on-bad", "fail")
    build(tmp_path / "in", tmp_path / "ids", with_ids=False)


def test_links_loops_and_hidden_folders(tmp_path):
    source = tmp_path / "in"
    write(source / "real/a.json", ("a", "one"))
    write(source / ".hidden/h.json", ("h", "in a hidden folder"))
    write(tmp_path / "elsewhere/b.json", ("b", "two"))
    (source / "loop").symlink_to(source, target_is_directory=True)
    (source / "real/up").symlink_to("..", target_is_directory=True)
    (source / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (source / "gone.json").symlink_to(tmp_path / "nowhere.json")
    os.mkfifo(source / "pipe.json")
    dataset = build(source, tmp_path / "out")
    assert {"a", "b"} <= dataset.ids
    assert len(dataset.rows) == len(dataset.ids), "a file was read twice"
    assert dataset.places == [("gone.json", None)]
    assert dataset.ids == {"a", "b", "h"}  # only the last part of a name makes a side file


def test_a_list_with_what_is_missing_and_what_is_there_twice(tmp_path):
    write(tmp_path / "in/a.json", ("a", "one"))
    write(tmp_path / "in/_b.json", ("b", "asked for by name, so no side file"))
    listed = tmp_path / "list.txt"
    listed.write_text(
        f"# a comment\n{tmp_path}/in/a.json\n\n{tmp_path}/in/_b.json\n{tmp_path}/in/gone.json\n{tmp_path}/in/a.json\r\n"
    )
    dataset = build(None, tmp_path / "out", "--source-list", listed)
    assert dataset.ids == {"a", "b"}
    assert dataset.reasons == {"missing_object": 1}
    assert "gone.json" in dataset.places[0][0]
    assert dataset.ledger["objects"]["listed_twice"] == 1
    assert "gone.json" in refused(None, tmp_path / "strict", "--source-list", listed, "--on-bad", "fail")


def test_sources_that_hold_nothing_say_so(tmp_path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "side/_SUCCESS", b"")
    write(tmp_path / "bare/a.txt", ("a", "x"))
    for source, said in (
        ("empty", "no objects"),
        ("side", "side files"),
        ("missing", "no such"),
        ("bare/*.json", "no objects"),
    ):
        assert said in refused(tmp_path / source, tmp_path / "out")


def test_output_inside_the_source_is_a_wrong_call(tmp_path):
    source = tmp_path / "in"
    shutil.copytree(TREE, source)
    assert "inside the source" in refused(source, source / "out", code=2)
