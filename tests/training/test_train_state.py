"""Checkpoint files: whole or not there, the best is kept, a damaged one is left out and said."""

from __future__ import annotations

import random
import resource
import warnings

import numpy as np
import pytest
import torch

from shardprep.errors import Full, StoreError


@pytest.fixture
def checkpoints(tmp_path):
    from train_state import Checkpoints

    return Checkpoints(tmp_path / "run", keep=2)


def state(step: int) -> dict[str, object]:
    return {"step": step, "model": {"weight": torch.full((50, 50), float(step))}}


def test_the_last_ones_and_the_best_stay(checkpoints):
    assert checkpoints.newest() is None
    for step, best in ((10, 10), (20, 20), (30, 20), (40, 20), (50, 20), (60, 60)):
        checkpoints.save(step, state(step), best)
    assert checkpoints.steps() == [50, 60]
    assert checkpoints.newest()["step"] == 60
    checkpoints.save(70, state(70), 50)
    checkpoints.save(80, state(80), 50)
    assert checkpoints.steps() == [50, 70, 80]


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.999])
def test_one_that_was_cut_is_left_out_with_a_warning(checkpoints, part):
    checkpoints.save(10, state(10), None)
    checkpoints.save(20, state(20), None)
    path = checkpoints.path(20)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.warns(UserWarning, match=r"step-000000020\.pt is cut or damaged"):
        assert checkpoints.newest()["step"] == 10


def test_one_whose_weights_were_changed_is_left_out_too(checkpoints):
    checkpoints.save(10, state(10), None)
    checkpoints.save(20, state(20), None)
    data = bytearray(checkpoints.path(20).read_bytes())
    data[data.index(np.float32(20).tobytes() * 8) + 2] ^= 1  # a bit of a weight, deep inside
    checkpoints.path(20).write_bytes(data)
    with pytest.warns(UserWarning, match="damaged"):
        assert checkpoints.newest()["step"] == 10


def test_a_bit_of_its_table_of_contents_is_enough(checkpoints):
    checkpoints.save(10, state(10), None)
    checkpoints.save(20, state(20), None)
    data, path = checkpoints.path(20).read_bytes(), checkpoints.path(20)
    for place in range(len(data) - 600, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x80]) + data[place + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = checkpoints.newest()
        assert found["step"] == 10 or torch.equal(found["model"]["weight"], state(20)["model"]["weight"])


def test_training_does_not_start_at_0_where_all_are_damaged(checkpoints):
    checkpoints.save(10, state(10), None)
    checkpoints.path(10).write_bytes(b"PK")
    with pytest.warns(UserWarning, match="cut"), pytest.raises(StoreError, match="none of the 1 checkpoints is whole"):
        checkpoints.newest()


def test_a_full_disk_leaves_the_older_ones(checkpoints):
    checkpoints.save(10, state(10), None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(Full, match=r"File too large.*older ones are whole"):
            checkpoints.save(20, state(20), None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-000000010.pt"]


def test_random_numbers_go_on_where_they_were(tmp_path):
    from train_state import random_state, restore_random_state, seed_everything

    def draw() -> list[float]:
        return [torch.rand(()).item(), np.random.rand(), random.random(), random.gauss(0, 1)]  # noqa: NPY002

    seed_everything(3, 1, 0)
    draw()
    torch.save(random_state(), tmp_path / "state.pt")
    expected = [draw(), draw()]
    seed_everything(3, 2, 0)
    assert draw() not in expected
    restore_random_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert [draw(), draw()] == expected
