"""Two jobs with one output: one wins, the other says so or has the same; the data set is whole all the same."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardprep.errors import ManifestConflict
from shardprep.prep import build as building
from shardprep.prep import publish
from tests.prep.builds import (
    assert_holds,
    assert_whole,
    build_here,
    command,
    documents,
    hashes,
    manifest_of,
    run,
    write_files,
    write_lines,
)

DOCUMENTS = documents(1_500, seed=7)
FLAGS = ("--scheduler", "serial", "--split", "train=0.8,validation=0.2", "--dedup", "exact")
SETTINGS: dict[str, Any] = {"split": "train=0.8,validation=0.2", "dedup": "exact"}
STEPS = ("_scan_all", "_judge", "_write_all", "giants", "_publish")  # of build.py, in the order of the job


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_files(tmp_path_factory.mktemp("source"), DOCUMENTS)
    write_lines(folder / "more.jsonl", ["{broken", {"id": "again", "text": DOCUMENTS[0]["text"]}])
    return folder


@pytest.fixture(scope="module")
def right(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("right")
    build_here(source, output, **SETTINGS)
    assert_whole(output)
    return hashes(output)


def started(source: Path, output: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(source, output, *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_same_job_twice_at_once(source: Path, right: dict[str, str], tmp_path: Path) -> None:
    jobs = [started(source, tmp_path / "out", *FLAGS) for _ in range(3)]
    said = [job.communicate(timeout=300)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0], said
    assert_whole(tmp_path / "out")
    assert hashes(tmp_path / "out") == right


@pytest.mark.parametrize("step", STEPS)
def test_the_same_job_overtakes_at_any_step(
    step: str, source: Path, right: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job stands before a step until another one, begun later, has published and swept what was staged."""
    real = getattr(building, step)
    overtaken = False

    def waiting(*arguments: Any, **named: Any) -> Any:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            done = run(command(source, tmp_path, *FLAGS))
            assert done.returncode == 0, done.stderr
        return real(*arguments, **named)

    monkeypatch.setattr(building, step, waiting)
    build_here(source, tmp_path, **SETTINGS)
    assert overtaken
    assert_whole(tmp_path)
    assert hashes(tmp_path) == right


def test_other_settings_at_once(source: Path, tmp_path: Path) -> None:
    jobs = [started(source, tmp_path / "out", *FLAGS, "--shards", number) for number in ("2", "3")]
    said = [job.communicate(timeout=300)[1] for job in jobs]
    assert sorted(job.returncode for job in jobs) == [0, 1], said
    loser = next(text for job, text in zip(jobs, said, strict=True) if job.returncode)
    assert "--overwrite" in loser
    assert "Traceback" not in loser
    assert_whole(tmp_path / "out")
    assert_holds(tmp_path / "out", DOCUMENTS)


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_settings_overtake_at_the_end(
    overwrite: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is a create-only put, or a conditional one: who began earlier and comes later has lost."""
    if overwrite:
        build_here(write_files(tmp_path / "older", documents(5)), tmp_path / "out")
    real = publish.Output.publish

    def late(self: publish.Output, *arguments: Any) -> None:
        monkeypatch.setattr(publish.Output, "publish", real)
        build_here(source, tmp_path / "out", shards=2, overwrite=overwrite)
        real(self, *arguments)

    monkeypatch.setattr(publish.Output, "publish", late)
    with pytest.raises(ManifestConflict, match="another job published"):
        build_here(source, tmp_path / "out", shards=3, overwrite=overwrite)
    assert len(manifest_of(tmp_path / "out").shards) == 2
    assert_whole(tmp_path / "out")


def test_another_data_set_is_refused_before_anything_is_read(source: Path, tmp_path: Path) -> None:
    build_here(source, tmp_path / "out")
    before = hashes(tmp_path / "out")
    done = run([*command(source, tmp_path / "out", *FLAGS), "--json"])
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] == "ManifestConflict"
    assert hashes(tmp_path / "out") == before


def test_a_reader_never_sees_a_mixture_while_data_sets_are_replaced(tmp_path: Path) -> None:
    """A thread verifies again and again while jobs with --overwrite replace one data set by another."""
    sources = [write_files(tmp_path / name, documents(30, seed=i)) for i, name in enumerate("ab")]
    output = tmp_path / "out"
    build_here(sources[0], output)
    wanted = [{d["id"] for d in documents(30, seed=i)} for i in range(2)]
    over = threading.Event()
    seen: list[Any] = []

    def look() -> None:
        from tests.prep.builds import rows_of

        while not over.is_set():
            with contextlib.suppress(FileNotFoundError):  # replaced and swept between manifest and shard
                seen.append({row["id"] for row in rows_of(output)})
            time.sleep(0.001)

    with running(threading.Thread(target=look, name="looks")):
        try:
            for turn in itertools.count(1):
                build_here(sources[turn % 2], output, overwrite=True)
                if turn >= 8 and len(seen) > 3:
                    break
        finally:
            over.set()
    assert all(ids in wanted for ids in seen)
    assert_whole(output)


@contextlib.contextmanager
def running(thread: threading.Thread) -> Iterator[None]:
    thread.start()
    try:
        yield
    finally:
        thread.join(300)


def test_running_again_does_nothing(source: Path, right: dict[str, str], tmp_path: Path) -> None:
    for _ in range(2):
        done = run(command(source, tmp_path / "out", *FLAGS))
        assert done.returncode == 0, done.stderr
        assert hashes(tmp_path / "out") == right
    assert "already built" in done.stdout


def test_a_lost_shard_is_made_again(source: Path, right: dict[str, str], tmp_path: Path) -> None:
    build_here(source, tmp_path, **SETTINGS)
    shard = tmp_path / manifest_of(tmp_path).shards[0].name
    shard.unlink()
    build_here(source, tmp_path, **SETTINGS)
    assert hashes(tmp_path) == right
