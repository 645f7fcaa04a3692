"""EpochBoard: workers of one iteration agree on its epoch, whatever became of the others."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

from shardprep.torch.board import KEPT, EpochBoard, Member, Start


def begin(board, key, worker, *, turn=1, workers=2, at=None):
    return board.begin(Member(key, turn, worker, workers), at)


def test_workers_of_one_iteration_play_one_epoch_and_the_next_one_the_next():
    board = EpochBoard(Start(0, 4, 6))
    assert begin(board, 11, 0) == begin(board, 11, 1) == Start(0, 4, 6)
    assert begin(board, 12, 1) == begin(board, 12, 0) == Start(1, 0, 6)
    assert begin(board, 12, 0, turn=2) == begin(board, 12, 1, turn=2) == Start(2, 0, 6)  # persistent workers
    assert board.upcoming == Start(3, 0, 6)


def test_without_workers_each_iteration_is_another():
    board = EpochBoard(Start(5, 0, 1))
    assert [begin(board, None, 0, turn=n, workers=1).epoch for n in (1, 2, 3)] == [5, 6, 7]


def test_a_late_worker_joins_its_own_iteration():
    board = EpochBoard(Start(0, 0, 1))
    begin(board, 11, 0)
    begin(board, 11, 0, turn=2)
    assert begin(board, 11, 1).epoch == 0
    assert begin(board, 11, 1, turn=2).epoch == 1


def test_the_same_seed_again_is_another_iteration():
    board = EpochBoard(Start(0, 0, 1))
    assert [begin(board, 11, worker).epoch for worker in (0, 1, 0, 1)] == [0, 0, 1, 1]


def test_an_iteration_whose_workers_are_gone_is_not_joined():
    board = EpochBoard(Start(0, 0, 1))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with board._locked():
        document = board._read()
        document["begun"].append({"key": [11, 1, 2], "start": [0, 0, 1], "members": {"0": gone.pid}})
        document["next"] = [1, 0, 1]
        board._write(document)
    assert begin(board, 11, 1).epoch == 1


def test_where_to_begin_can_be_said_by_the_first():
    board = EpochBoard(Start(0, 0, 1))
    assert begin(board, 11, 1, at=Start(4, 2, 3)) == begin(board, 11, 0, at=Start(4, 2, 3)) == Start(4, 2, 3)
    assert board.upcoming == Start(5, 0, 3)
    board.upcoming = Start(1, 1, 1)
    assert begin(board, 12, 0) == Start(1, 1, 1)


def test_the_file_stays_small_and_nameless():
    board = EpochBoard(Start(0, 0, 1))
    for key in range(100):
        begin(board, key, 0)
    assert len(board._read()["begun"]) == KEPT
    assert os.fstat(board._file).st_nlink == 0
    assert os.fstat(board._file).st_size < 4096
    copy = pickle.loads(pickle.dumps(board))
    begin(copy, 1, 0)
    assert board.upcoming.epoch == 100
    assert copy.upcoming.epoch == 101
