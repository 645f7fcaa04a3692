"""Worker processes that die, fail or lose their parent; case C53 (b), (c) and (d)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import psutil
import pytest

import shardprep
from shardprep.errors import ConfigError, ManifestError, WorkerError
from shardprep.formats.buffers import BufferPool, Unpooled
from shardprep.reader import wire
from shardprep.reader.making import Made, in_order
from shardprep.reader.plan import Chunk
from shardprep.reader.worker import Reply, _send
from shardprep.reader.workers import WorkerPool, _how_it_ended
from shardprep.torch import TorchLoader
from tests.torch.played import played, seen

ROOT = Path(__file__).parents[2]
POLICY = {"batch_tokens": 2_000, "seed": 3}
WORKER = "shardprep.reader.worker"


def worker_pids(parent: int | None = None) -> list[int]:
    children = psutil.Process(parent).children(recursive=True)
    return [child.pid for child in children if WORKER in " ".join(child.cmdline())]


@pytest.mark.parametrize("persistent", [False, True])
def test_c53_a_killed_worker_is_an_error_at_its_own_place(dataset, persistent):
    whole = played(TorchLoader(dataset.loader(**POLICY)))
    with TorchLoader(dataset.loader(**POLICY), num_workers=2, persistent_workers=persistent) as loader:
        got, state = [], loader.state_dict()
        with pytest.raises(WorkerError) as raised:  # noqa: PT012
            for batch in loader:
                if not got:
                    os.kill(worker_pids()[1], signal.SIGKILL)
                got.append(seen(batch))
                state = loader.state_dict()
        assert got == whole[: len(got)]
        assert 0 < len(got) < len(whole)
        said = str(raised.value)
        assert "reader worker 1" in said
        assert "SIGKILL" in said
        assert "train/0000" in said
        assert raised.value.fields["exit_code"] == -signal.SIGKILL
        loader.load_state_dict(state)  # new workers go on from there
        assert got + played(loader) == whole


def test_c53_a_damaged_shard_is_named_at_its_own_place(shards, tmp_path):
    shutil.copytree(shards, tmp_path / "shards")
    names = [shard.info.name for shard in shardprep.open(shards).loader(**POLICY).plan.refs]
    path = tmp_path / "shards" / names[3]
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    good = []
    for workers in (0, 2):
        dataset = shardprep.open(tmp_path / "shards", cache_dir=tmp_path / f"cache-{workers}")
        loader = TorchLoader(dataset.loader(batch_tokens=500, seed=3), num_workers=workers)
        good.append([])
        with pytest.raises(ManifestError, match=names[3]) as raised:  # noqa: PT012
            for batch in loader:
                good[-1].append(batch.ids)
        if workers:
            assert "raised in reader worker" in raised.value.__notes__[0]
    assert good[0] == good[1]


def test_c53_stop_iteration_is_an_error_and_not_the_end():
    class Failing:
        ahead, makes_alone = 1, False

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            pass

        def begin(self, chunk):
            done: Future[Made] = Future()
            done.set_result(Made(error=StopIteration()))
            return done

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(in_order(iter([Chunk(0, 0, 0, 1)]), Failing()))


def test_an_error_that_does_not_pickle_is_told_in_words():
    class Odd(Exception):
        def __reduce__(self):
            raise TypeError("no")

    ours, theirs = socket.socketpair()
    with ours, theirs:
        _send(theirs, Reply(1, 2, error=Odd("the disk is on fire")))
        reply = wire.receive(reading(ours), Unpooled())
    assert isinstance(reply.error, RuntimeError)
    assert str(reply.error) == "Odd: the disk is on fire"


def reading(sock):
    def read_into(data):
        while data:
            data = data[sock.recv_into(data) :]

    return read_into


def test_arrays_cross_a_socket_into_pooled_memory():
    pool = BufferPool()
    value = {"a": np.arange(1000, dtype=np.int32), "b": np.zeros(0), "c": "x", "d": np.ones((3, 5))}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(theirs, value)
        got = wire.receive(reading(ours), pool)
    assert got["c"] == "x"
    for name in ("a", "b", "d"):
        assert np.array_equal(got[name], value[name])
        assert got[name].dtype == value[name].dtype
    got["a"][0] = 7  # writable
    assert pool.idle_bytes == 0
    del got
    assert pool.idle_bytes > 0


PARENT = """
import os, sys, time
import psutil, shardprep
from shardprep.torch import TorchLoader
dataset = shardprep.open(sys.argv[1], cache_dir=sys.argv[2])
loader = TorchLoader(dataset.loader(batch_tokens=300), num_workers=2)
for batch in loader:
    pids = [child.pid for child in psutil.Process().children() if "shardprep.reader.worker" in " ".join(child.cmdline())]
    forked = os.fork()  # holds all sockets open
    if not forked:
        time.sleep(600)
        os._exit(0)
    print(*pids, forked, flush=True)
    time.sleep(600)
"""


def test_workers_end_with_their_parent(shards, tmp_path):
    command = [sys.executable, "-c", PARENT, str(shards), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as parent:
        *pids, forked = map(int, parent.stdout.readline().split())
        try:
            assert len(pids) == 2
            assert all(map(psutil.pid_exists, pids))
            parent.kill()
            until = time.monotonic() + 200
            while any(map(alive, pids)) and time.monotonic() < until:
                time.sleep(0.05)
            assert not any(map(alive, pids))
        finally:
            os.kill(forked, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_workers_have_neither_torch_nor_shared_memory_nor_the_script(dataset):
    with TorchLoader(dataset.loader(**POLICY), num_workers=2, persistent_workers=True) as loader:
        played(loader)
        pids = worker_pids()
        maps = [part.path for pid in pids for part in psutil.Process(pid).memory_maps()]
        scripts = [part for pid in pids for part in psutil.Process(pid).cmdline()[1:2]]
        assert len(pids) == 2
        assert not any("site-packages/torch/" in path or path.startswith(("/dev/shm", "/SYSV")) for path in maps)
        assert scripts == ["-c", "-c"]
    assert not worker_pids()


def test_a_pool_left_alone_ends_its_workers(dataset):
    loader = TorchLoader(dataset.loader(**POLICY), num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    pids = worker_pids()
    del iterator, loader
    assert pids
    assert not any(map(alive, pids))


def test_the_first_batch_does_not_wait_for_the_workers_to_start(dataset, monkeypatch):
    monkeypatch.setattr("shardprep.reader.workers.PROGRAM", "import time; time.sleep(600)")
    first = next(iter(dataset.loader(**POLICY)))
    iterator = iter(TorchLoader(dataset.loader(**POLICY), num_workers=2))
    assert next(iterator).ids == first.ids
    iterator.close()


def test_words_for_ends():
    assert "exit code 3" in _how_it_ended(3)
    assert "SIGKILL; out of memory?" in _how_it_ended(-9)
    assert _how_it_ended(-64).endswith(("SIGRTMAX", "signal 64"))


def test_a_pool_needs_a_worker(dataset):
    loader = dataset.loader(**POLICY)
    with pytest.raises(ConfigError, match="num_workers"):
        WorkerPool(loader.plan, loader.open_cache, 0)
