import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardprep.prep import engine
from tests.cases.command import build, environment
from tests.cases.inputs import line, poisoned, write
from tests.invariants import assert_for_a_person, assert_not_published, assert_places, assert_sound, content

PROGRAM = Path(__file__).with_name("poison_build.py")


def poison_build(source, output, **settings):
    settings = {"id_field": "id", "workers": 2, **settings}
    return subprocess.run(
        [sys.executable, str(PROGRAM), str(source), str(output), json.dumps(settings)],
        env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_strict_stops_with_object_and_line(tmp_path):
    write(tmp_path / "in/docs.jsonl", poisoned())
    ran = poison_build(tmp_path / "in", tmp_path / "out", on_bad="fail")
    assert ran.returncode == 1
    assert_for_a_person(ran.stderr)
    assert "docs.jsonl, line 38" in ran.stderr
    assert_not_published(tmp_path / "out")


def test_tolerant_loses_that_document_and_no_other(tmp_path):
    write(tmp_path / "in/docs.jsonl", poisoned())
    ran = poison_build(tmp_path / "in", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    dataset = assert_sound(tmp_path / "out")
    assert dataset.ids == {str(i) for i in range(100) if i != 37}
    assert dataset.reasons == {"worker_died": 1}
    assert_places(dataset, {"docs.jsonl": [38]})


# The long search goes on past the 15 s after which Dask gives up workers, unless it is told not to.
@pytest.mark.parametrize("killers", [(1500, 4000), pytest.param((2, 1500, 1502, 4000), marks=pytest.mark.slow)])
def test_killers_in_every_container_and_two_in_one(tmp_path, killers):
    source = tmp_path / "in"
    good = [line(f"l{i}", "x" * 1000) for i in range(4000)]
    for number in killers:  # in different byte ranges of one file
        good[number - 1] = line(f"p{number}", "POISON")
    write(source / "large.jsonl", *good)
    items = [{"id": f"a{i}", "text": "POISON" if i in (3, 4) else "fine"} for i in range(6)]
    write(source / "array.json", json.dumps(items, indent=1).encode())
    write(source / "single.json", line("s", "POISON"))
    write(source / "packed.gz", gzip.compress(line("z0", "fine") + line("z1", "POISON")))
    for i in range(20):
        write(source / f"good/{i}.json", line(f"g{i}", f"good {i}"))
    write(source / "bad.jsonl", line("b0", "fine"), b"broken\n", line("b2", "POISON"), line("b3", "fine"))
    ran = poison_build(source, tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    dataset = assert_sound(tmp_path / "out")
    expected = {
        "large.jsonl": killers, "array.json": [14, 18], "single.json": [1], "packed.gz": [2], "bad.jsonl": [2, 3],
    }  # fmt: skip
    assert_places(dataset, expected)
    assert dataset.reasons == {"worker_died": len(killers) + 5, "invalid_json": 1}
    assert dataset.ledger["written"] == 4000 - len(killers) + 4 + 1 + 20 + 2


@pytest.mark.slow
def test_the_search_ends_in_the_same_bytes_whoever_works(tmp_path):
    lines = [line(i, "POISON" if i in (5, 61) else f"text {i}") for i in range(100)]
    write(tmp_path / "in/docs.jsonl", *lines)
    for workers in (1, 3):
        assert poison_build(tmp_path / "in", tmp_path / f"out{workers}", workers=workers).returncode == 0
    assert without_pickle(tmp_path / "out1") == without_pickle(tmp_path / "out3")


def without_pickle(root):
    """Return the contents but for the pickled tokenizer: pickles of a class are not the same twice."""
    return {name: digest for name, digest in content(root).items() if not name.endswith(".pickle")}


class DiesReading(engine.SerialEngine):
    """An engine on which every scan dies that reads the bytes from 1,500,000 on, however few of its records are wanted."""

    def alone(self, function, argument):
        task, skip = argument.task, argument.skip
        inside = task.byte_range is not None and task.byte_range[0] <= 1_500_000 < task.byte_range[1]
        if inside and skip.get(task.objects[0].name, frozenset()) is not None:
            return engine.WorkerDied("it died")
        return function(argument)

    def run(self, function, count, task):
        for index in range(count):
            call = task(index)
            yield index, self.alone(function, call) if hasattr(call, "skip") else function(call)


def test_a_byte_range_that_kills_its_reader_takes_the_whole_object_along(tmp_path, monkeypatch):
    monkeypatch.setattr("shardprep.prep.build.SerialEngine", DiesReading)
    write(tmp_path / "in/large.jsonl", *[(i, "x" * 1000) for i in range(3000)])
    write(tmp_path / "in/good.jsonl", ("a", "one"))
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.ids == {"a"}
    assert_places(dataset, {"large.jsonl": [None]})
    assert dataset.ledger["found"] == 2


@pytest.mark.slow
def test_too_many_killers_are_a_machine_and_end_the_job(tmp_path):
    write(tmp_path / "in/docs.jsonl", *[(i, "POISON") for i in range(30)], (30, "good"))
    ran = poison_build(tmp_path / "in", tmp_path / "out")
    assert ran.returncode == 1
    assert_for_a_person(ran.stderr)
    assert "docs.jsonl" in ran.stderr
    assert "--memory-limit" in ran.stderr
    assert_not_published(tmp_path / "out")
