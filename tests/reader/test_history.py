"""States by step in a folder: whole files only, the right one found again, and nothing silent about a bad one."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.errors import ConfigError, StoreError
from shardprep.reader.history import SIZE_MAX_BYTES, StateHistory

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
STATES = st.dictionaries(st.text(max_size=3), JSON, max_size=4)


def files(folder):
    return sorted(os.listdir(folder))


@given(st.lists(st.tuples(st.integers(0, 30), STATES), max_size=12), st.integers(1, 4), st.integers(0, 30))
def test_it_is_the_list_of_the_last_saves(tmp_path_factory, saves, keep, asked):
    history = StateHistory(tmp_path_factory.mktemp("h") / "states", keep)
    kept = []
    for step, state in saves:
        history.save(step, state)
        kept = ([entry for entry in kept if entry[0] != step] + [(step, state)])[-keep:]
    again = StateHistory(history.folder)  # another process
    assert again.steps() == [step for step, _ in kept]
    assert again.load() == (kept[-1][1] if kept else None)
    before = {step: state for step, state in kept if step <= asked}
    if before:
        assert again.load(asked) == before[max(before)]
    elif not kept or asked == 0:
        assert again.load(asked) is None
    else:
        with pytest.raises(StoreError, match="no state at or before step"):
            again.load(asked)


def test_without_a_state_there_is_none(tmp_path):
    history = StateHistory(tmp_path / "missing")
    assert history.load() is None
    assert history.load(7) is None
    assert history.steps() == []
    assert not (tmp_path / "missing").exists()


def test_a_run_that_went_back_is_found_at_its_last_save(tmp_path):
    history = StateHistory(tmp_path, keep=3)
    for step in (100, 200, 300, 110):
        history.save(step, {"step": step})
    assert history.load() == {"step": 110}
    assert history.load(300) == {"step": 300}
    assert history.load(250) == {"step": 200}


def test_later_states_alone_are_an_error_and_no_start_at_zero(tmp_path):
    history = StateHistory(tmp_path)
    history.save(500, {})
    with pytest.raises(StoreError, match="no state at or before step 300, the earliest is of step 500"):
        history.load(300)


@pytest.mark.parametrize(
    "damage", ["half", "empty", "zeros", "one byte", "deep", "other json", "list", "version", "renamed", "nan", "big"]
)
def test_a_bad_file_is_an_error_that_names_it(tmp_path, damage):
    history = StateHistory(tmp_path)
    history.save(1, {"epoch": 0, "step": 1})
    path = history.save(2, {"epoch": 0, "step": 2, "seed": 7})
    with open(path, "rb") as file:
        good = file.read()
    document = json.loads(good)
    bad = {
        "half": good[: len(good) // 2],
        "empty": b"",
        "zeros": bytes(len(good)),
        "one byte": good.replace(b'"seed": 7', b'"seed": 8'),
        "deep": b"[" * 60_000,
        "other json": b'{"epoch": 0}',
        "list": b"[1, 2]",
        "version": json.dumps(document | {"version": 99}).encode(),
        "renamed": json.dumps(document | {"step": 3}).encode(),
        "nan": good.replace(b'"seed": 7', b'"seed": NaN'),
        "big": good + b" " * SIZE_MAX_BYTES,
    }[damage]
    with open(path, "wb") as file:
        file.write(bad)
    with pytest.raises(StoreError, match=r"states of other steps are there: \[1\]; remove this file") as error:
        history.load()
    assert error.value.message.startswith(f"{path}: ")
    assert error.value.fields == {"uri": path}
    assert history.load(1) == {"epoch": 0, "step": 1}
    os.unlink(path)
    assert history.load() == {"epoch": 0, "step": 1}


def test_every_cut_is_noticed(tmp_path):
    history = StateHistory(tmp_path)
    path = history.save(1, {"epoch": 0, "step": 1})
    with open(path, "rb") as file:
        good = file.read()
    for size in range(len(good.rstrip())):
        with open(path, "wb") as file:
            file.write(good[:size])
        with pytest.raises(StoreError, match="no other state is there"):
            history.load()


@pytest.mark.parametrize(
    "state", [{"a": np.int64(1)}, {"a": (1, 2)}, {1: 2}, {"a": float("nan")}, {"a": b"x"}, [1], {"a": {1}}]
)
def test_only_plain_json_is_saved(tmp_path, state):
    with pytest.raises(ConfigError, match="plain JSON"):
        StateHistory(tmp_path).save(1, state)
    assert files(tmp_path) == []


def test_a_state_that_is_no_state_is_too_large(tmp_path):
    with pytest.raises(ConfigError, match="more than 65536"):
        StateHistory(tmp_path).save(1, {"model": "x" * SIZE_MAX_BYTES})
    assert files(tmp_path) == []


def test_a_file_is_small_plain_json(tmp_path):
    path = StateHistory(tmp_path).save(3, {"epoch": 1, "step": 2})
    assert os.stat(path).st_size < 1024
    with open(path) as file:
        assert json.load(file)["state"] == {"epoch": 1, "step": 2}


@pytest.mark.parametrize("step", [-1, 10**12])
def test_a_step_has_a_range(tmp_path, step):
    with pytest.raises(ConfigError, match="the step must be in"):
        StateHistory(tmp_path).save(step, {})


def test_at_least_one_state_is_kept(tmp_path):
    with pytest.raises(ConfigError, match="keep must be at least 1, got 0"):
        StateHistory(tmp_path, keep=0)


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for action in (lambda h: h.save(1, {}), lambda h: h.load()):
        with pytest.raises(StoreError, match="file"):
            action(StateHistory(tmp_path / "file"))


def test_a_state_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "state-000000000001-000001.json").mkdir()
    with pytest.raises(StoreError, match=r"state-000000000001-000001\.json: it cannot be read"):
        StateHistory(tmp_path).load()


def test_loading_while_another_process_saves_and_removes_finds_a_state(tmp_path):
    writing, reading = StateHistory(tmp_path, keep=1), StateHistory(tmp_path, keep=1)
    writing.save(0, {"step": 0})
    saver = threading.Thread(target=lambda: [writing.save(step, {"step": step}) for step in range(1, 200)])
    saver.start()
    seen = []
    while saver.is_alive() or not seen:
        seen.append(reading.load())
    saver.join()
    assert None not in seen
    steps = [state["step"] for state in seen]
    assert steps == sorted(steps)


def test_other_files_of_the_folder_are_left_alone_but_dead_temporary_ones(tmp_path):
    old, young = tmp_path / ".state-000000000001-000001.json.1.00.tmp", tmp_path / ".state-2.1.00.tmp"
    for path in (old, young, tmp_path / "model.pt", tmp_path / "state-1.json"):
        path.write_text("{")
    os.utime(old, (time.time() - 7200,) * 2)
    history = StateHistory(tmp_path, keep=1)
    history.save(1, {})
    history.save(2, {})
    assert files(tmp_path) == [".state-2.1.00.tmp", "model.pt", "state-000000000002-000002.json", "state-1.json"]


def test_whoever_copies_the_folder_copies_whole_states_only(tmp_path):
    """C54: 200 saves while another thread copies the folder all the time, hidden files too."""
    history, copies, done = StateHistory(tmp_path / "states", keep=3), [], threading.Event()
    history.save(0, {"step": 0, "text": "x" * 20_000})

    def copy():
        number = 0
        while not done.is_set():
            target = tmp_path / f"copy{number}"
            target.mkdir()
            for name in os.listdir(history.folder):
                try:
                    shutil.copyfile(os.path.join(history.folder, name), target / name)
                except FileNotFoundError:  # removed or renamed meanwhile
                    continue
            copies.append(target)
            number += 1

    copier = threading.Thread(target=copy)
    copier.start()
    try:
        for step in itertools.count(1):
            history.save(step, {"step": step, "text": "x" * 20_000})
            if step >= 200 and len(copies) > 5:
                break
    finally:
        done.set()
        copier.join()
    checked = 0
    for folder in copies:
        for path in folder.iterdir():
            assert json.loads(path.read_bytes())["format"] == "shardprep reader state", path
            checked += 1
    assert checked > 10
    newest = StateHistory(copies[-1])
    assert newest.load()["step"] == newest.steps()[-1]


def test_a_killed_save_leaves_all_that_was_there(tmp_path):
    history = StateHistory(tmp_path)
    code = (
        "import sys\nfrom shardprep.reader.history import StateHistory\nh = StateHistory(sys.argv[1])\n"
        "print('x', flush=True)\ni = 0\nwhile True:\n    i += 1\n    h.save(i, {'step': i, 'text': 'x' * 30_000})"
    )
    for wait_s in (0.02, 0.05, 0.09):
        child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(wait_s)
        child.kill()
        child.wait()
        child.stdout.close()
        for path in tmp_path.glob("state-*"):
            json.loads(path.read_bytes())
        state = history.load()
        assert state is None or state["step"] == history.steps()[-1]
