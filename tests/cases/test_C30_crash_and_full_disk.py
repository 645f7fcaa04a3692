import os
import random
import resource
import shutil
import signal
import subprocess
import time

import pytest

from tests.cases.command import arguments_of, build, command_line, environment, run, spawn
from tests.cases.inputs import docs_1000, line, split_into, write
from tests.invariants import assert_for_a_person, assert_not_published, assert_sound, content

LOCAL = ("--scheduler", "local", "--workers", 2, "--shards", 40)


def files(output):
    return sum(len(names) for _, _, names in os.walk(output))  # which bears folders that go meanwhile


def killed_after(source, output, more_files, later_s):
    """Build in a process group of its own, kill all of it once it wrote so many files more; say whether it had ended."""
    before = files(output)
    command = command_line(*arguments_of(source, output, LOCAL))
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline and files(output) < before + more_files:
        time.sleep(0.002)
    time.sleep(later_s)
    ended = process.poll() is not None
    if not ended:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(300)
    return ended


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return split_into(tmp_path_factory.mktemp("c30") / "in", docs_1000(), 100)[0].parent


@pytest.fixture(scope="module")
def right(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("c30-right") / "out"
    build(source, out, "--shards", 40)
    return content(out)


def test_killed_ten_times_and_then_left_alone(source, right, tmp_path):
    rng = random.Random(30)
    output = tmp_path / "out"
    shards = []
    for _ in range(40):
        if killed_after(source, output, rng.randint(1, 8), rng.uniform(0, 0.01)):  # too late: this machine is busy
            assert content(output) == right
            shutil.rmtree(output)
            continue
        assert_not_published(output)
        shards.append(len(list(output.rglob("*.parquet"))))
        ran = run("verify", output)
        assert ran.code == 1
        assert "not finished" in ran.err
        if len(shards) >= 10 and any(0 < count < 40 for count in shards):
            break
    else:
        raise AssertionError(f"ten kills, one of them while shards are written: shards after each kill {shards}")
    ran = spawn(*arguments_of(source, output, LOCAL))
    assert ran.code == 0, ran.err
    assert assert_sound(output).ids == {str(i) for i in range(1000)}
    assert content(output) == right


def limited(arguments, bytes_):
    """Run with a limit on the size of files, as a full disk or a quota would have it."""
    # A coverage measurement of the child has a file of its own, which the limit would hit too.
    env = {name: value for name, value in environment().items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        command_line(*arguments), env=env, capture_output=True, text=True, timeout=300, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_)),
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "scheduler", [("--scheduler", "serial"), ("--scheduler", "local", "--workers", 2)], ids=["serial", "local"]
)
def test_no_room_for_what_is_staged(tmp_path, scheduler):
    write(tmp_path / "in/docs.jsonl", docs_1000())
    arguments = arguments_of(tmp_path / "in", tmp_path / "out", scheduler)
    code, err = limited(arguments, 20_000)
    assert code == 1
    assert_for_a_person(err)
    assert "space" in err
    assert str(tmp_path / "out") in err
    assert_not_published(tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*.tmp") if path.is_file()]
    ran = spawn(*arguments)
    assert ran.code == 0
    assert assert_sound(tmp_path / "out").ids == {str(i) for i in range(1000)}


def test_no_room_for_a_shard(tmp_path):
    rng, signs = random.Random(1), bytes(40 + i % 50 for i in range(256))  # hardly to be compressed, and plain in JSON
    lines = [line(i, rng.randbytes(40_000).translate(signs).decode()) for i in range(200)]
    split_into(tmp_path / "in", b"".join(lines), 5)
    arguments = arguments_of(tmp_path / "in", tmp_path / "out", ("--shards", 1))
    code, err = limited(arguments, 5_500_000)
    assert code == 1
    assert_for_a_person(err)
    assert "space" in err
    assert "00000-of-00001.parquet" in err
    assert_not_published(tmp_path / "out")
    ran = spawn(*arguments)
    assert ran.code == 0
    assert len(assert_sound(tmp_path / "out").ids) == 200


def test_a_folder_that_may_not_be_written(tmp_path):
    write(tmp_path / "in/docs.jsonl", docs_1000(10))
    write(tmp_path / "file", b"")
    ran = run(*arguments_of(tmp_path / "in", tmp_path / "file/out", ()))
    assert ran.code == 1
    assert_for_a_person(ran.err)
    assert str(tmp_path / "file") in ran.err
