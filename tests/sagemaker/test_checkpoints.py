"""Saves that are copied while they are written: what is half is recognised, and the one before it is used."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from shardprep.adapters.sagemaker.checkpoints import Checkpoints
from shardprep.errors import ConfigError, StoreError
from shardprep.reader.history import StateHistory


def put(checkpoints, step, size=5000):
    """Save a model file and a state at a step, as a training loop does."""
    name = f"model-{step}.pt"
    with checkpoints.file(name) as path:
        Path(path).write_bytes(bytes([step % 256]) * size)
    return checkpoints.save(step, {"reader": {"epoch": 0, "step": step}}, files=[name])


def names(folder):
    return sorted(os.listdir(folder))


def test_the_last_save_comes_back_with_its_files(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.load() is None
    assert checkpoints.load(7) is None
    put(checkpoints, 10)
    path = put(checkpoints, 20)
    found = Checkpoints(tmp_path / "checkpoints", rank=3).load()  # any rank, any host
    assert (found.step, found.state, found.path) == (20, {"reader": {"epoch": 0, "step": 20}}, path)
    assert found.files == (str(tmp_path / "checkpoints" / "model-20.pt"),)
    assert checkpoints.load(15).step == 10
    assert checkpoints.steps() == [10, 20]


def test_no_name_holds_a_host_or_rank(tmp_path):
    sub = {}
    for host in ("algo-1", "algo-2"):
        code = (
            "import socket, sys; socket.gethostname = lambda: sys.argv[1]\n"
            "from shardprep.adapters.sagemaker import Checkpoints\n"
            "Checkpoints(sys.argv[2]).save(10, {'a': 1})"
        )
        subprocess.run([sys.executable, "-c", code, host, str(tmp_path / host)], check=True, timeout=300)
        sub[host] = {name: (tmp_path / host / name).read_bytes() for name in names(tmp_path / host)}
    assert sub["algo-1"] == sub["algo-2"]  # so even hosts that all write to one prefix write the same


def test_only_rank_0_writes(tmp_path):
    assert Checkpoints(tmp_path / "c", rank=1).save(1, {}) is None
    assert not (tmp_path / "c").exists()
    with pytest.raises(ConfigError, match="rank must be at least 0"):
        Checkpoints(tmp_path, rank=-1)


def test_old_files_go_with_their_states_and_no_others(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    (tmp_path / "mine.txt").write_text("mine")
    for step in range(1, 6):
        put(checkpoints, step)
    assert [name for name in names(tmp_path) if not name.startswith("state-")] == [
        "mine.txt",
        "model-4.pt",
        "model-5.pt",
    ]
    assert checkpoints.steps() == [4, 5]
    checkpoints.save(6, {}, files=["model-5.pt"])  # a file of two saves
    checkpoints.save(7, {}, files=["model-5.pt"])
    assert "model-5.pt" in names(tmp_path)
    assert "model-4.pt" not in names(tmp_path)


DAMAGES = {
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "bit": lambda data: data.replace(b'"step": 30', b'"step": 31', 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_half_state_is_passed_over_and_both_are_named(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path)
    good = put(checkpoints, 20)
    bad = put(checkpoints, 30)
    Path(bad).write_bytes(DAMAGES[damage](Path(bad).read_bytes()))
    with pytest.warns(UserWarning, match="is used") as caught:
        found = Checkpoints(tmp_path).load()
    assert found.step == 20
    assert bad in str(caught[0].message)
    assert good in str(caught[0].message)
    assert "of step 20" in str(caught[0].message)
    put(checkpoints, 40)  # training goes on
    assert checkpoints.load().step == 40


@pytest.mark.parametrize("damage", ["missing", "half", "bit"])
def test_a_half_model_file_is_recognised_by_the_state(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path)
    put(checkpoints, 20)
    put(checkpoints, 30)
    model = tmp_path / "model-30.pt"
    data = model.read_bytes()
    model.unlink() if damage == "missing" else model.write_bytes(data[:100] if damage == "half" else b"x" + data[1:])
    said = {"missing": "is missing", "half": "has 100 of 5,000 bytes", "bit": "was changed or damaged"}[damage]
    with pytest.warns(UserWarning, match=f"model-30.pt {said}.*The save before it is used"):
        assert checkpoints.load().step == 20


def test_several_bad_ones(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=5)
    for step in (1, 2, 3):
        put(checkpoints, step)
    (tmp_path / "model-3.pt").unlink()
    os.truncate(sorted(tmp_path.glob("state-*"))[1], 20)
    with pytest.warns(UserWarning, match=r"model-3\.pt is missing; .*not whole"):
        assert checkpoints.load().step == 1
    (tmp_path / "model-1.pt").unlink()
    with pytest.raises(
        StoreError, match=r"no save is whole: .*model-3\.pt .*model-1\.pt is missing.*to start at 0 on purpose"
    ):
        checkpoints.load()


def test_later_saves_alone_are_no_start_at_0(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    put(checkpoints, 20)
    with pytest.raises(StoreError, match="no state at or before step 10, the earliest is of step 20"):
        checkpoints.load(10)


def test_states_of_a_state_history_are_read(tmp_path):
    StateHistory(tmp_path).save(5, {"epoch": 1})
    found = Checkpoints(tmp_path).load()
    assert (found.step, found.state, found.files) == (5, {"epoch": 1}, ())
    StateHistory(tmp_path).save(6, {"state": {}, "more": 1})
    assert Checkpoints(tmp_path).load().state == {"state": {}, "more": 1}


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(OSError, match="disk"), checkpoints.file("model.pt") as path:  # noqa: PT012
        Path(path).write_bytes(b"half")
        raise OSError("disk")
    assert names(tmp_path) == []
    with checkpoints.file("sub/model.pt") as path:
        Path(path).write_bytes(b"whole")
    assert (tmp_path / "sub/model.pt").read_bytes() == b"whole"
    checkpoints.save(1, {}, files=["sub/model.pt"])
    assert checkpoints.load().files == (str(tmp_path / "sub/model.pt"),)


@pytest.mark.parametrize("name", ["../model.pt", "/elsewhere/model.pt", "."])
def test_files_lie_in_the_folder(tmp_path, name):
    checkpoints = Checkpoints(tmp_path / "c")
    with pytest.raises(ConfigError, match="files of a save lie in its folder"), checkpoints.file(name):
        pass
    with pytest.raises(ConfigError, match="files of a save lie in its folder"):
        checkpoints.save(1, {}, files=[name])


def test_a_file_that_was_not_written(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.pt is not there: write the files of a save before it"):
        Checkpoints(tmp_path).save(1, {}, files=["model.pt"])


COPIED_SAVES = 40


def test_whatever_moment_the_folder_is_copied_at_a_save_is_found(tmp_path):
    """A copy as SageMaker makes it: file by file, slowly, while they are written and removed; cut where it is stopped."""
    source, copies = tmp_path / "checkpoints", tmp_path / "copies"
    checkpoints = Checkpoints(source, keep=3)
    put(checkpoints, 0)
    stop = threading.Event()
    made = []

    def copy():
        while not stop.is_set():
            target = copies / f"{len(made):04d}"
            target.mkdir(parents=True)
            for name in os.listdir(source):
                try:
                    shutil.copyfile(source / name, target / name)
                except FileNotFoundError:
                    continue
                time.sleep(0.0005)
            made.append(target)

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        for step in itertools.count(1):
            put(checkpoints, step, 20_000)
            time.sleep(0.002)
            if step >= COPIED_SAVES and len(made) > 3:
                break
    finally:
        stop.set()
        thread.join()
    for target in made:
        with pytest.warns(UserWarning, match="is used") if _is_torn(target) else nullcontext():
            found = Checkpoints(target).load()
        assert Path(found.files[0]).read_bytes()[0] == found.step % 256


def _is_torn(folder):
    newest = max(folder.glob("state-*.json"), key=lambda path: path.name.rpartition("-")[2])
    document = json.loads(newest.read_bytes())
    return any(not (folder / file["name"]).exists() for file in document["state"]["files"])
