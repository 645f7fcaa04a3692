"""Processing jobs on one, two and three hosts, from S3 to S3: the bytes of a local build, and an end that all agree on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shardprep.storage.store import open_store
from tests.fault_proxy import FaultProxy
from tests.prep.builds import build_here, command, documents, hashes, run
from tests.sagemaker.jobs import FLAGS, Job, hashes_at, job, lines, put, staged_at
from tests.servers import BUCKET, SeaweedFS, environment

PARTS = 10
DOCUMENTS = documents(PARTS * 500, seed=7, longest=600)  # about 1 MB a part, so a scan task a part
SETTINGS = {"shards": 3, "split": "train=0.9,validation=0.1"}
WORKER = ("--workers", "1")


@pytest.fixture(scope="module")
def source(s3_server: SeaweedFS) -> Iterator[str]:
    """Ten line files in S3, and two documents that are set aside."""
    uri = f"s3://{BUCKET}/sagemaker/raw"
    before = dict(os.environ)
    os.environ.update(environment(s3_server.endpoint))
    size = len(DOCUMENTS) // PARTS
    parts = {f"part-{n:02d}.jsonl": lines(DOCUMENTS[n * size : (n + 1) * size]) for n in range(PARTS)}
    put(uri, parts | {"bad.jsonl": lines([{"id": "bad", "text": 5}, {"id": "worse"}])})
    yield uri + "/"
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def expected(source: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The bytes of a local build."""
    output = tmp_path_factory.mktemp("local")
    build_here(source, output, **SETTINGS)
    return hashes(output)


def _hang_up_on_all(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            server.accept()[0].close()


def builds_of(running: Job) -> list[psutil.Process]:
    """Return the process of the build, once it reads its job file."""
    return [process for process in running.head.tree() if "--config" in process.cmdline()]


@pytest.mark.usefixtures("s3_env")
class TestSameBytes:
    def test_one_host(self, source: str, expected: dict[str, str], s3_root: str, tmp_path: Path) -> None:
        with job(tmp_path, 1, source, s3_root, *FLAGS, *WORKER, "--json") as one:
            one.start()
            assert one.wait() == [0], one.log
        assert hashes_at(s3_root) == expected
        assert one.head.message.startswith(
            f"found {len(DOCUMENTS) + 2:,}, written {len(DOCUMENTS):,}, set aside 2; 6 shards"
        )
        assert f"manifest {s3_root}/manifest.json" in one.head.message
        assert "1 host," in one.head.message
        assert json.loads(one.head.printed)["manifest"] == f"{s3_root}/manifest.json"

    @pytest.mark.slow
    def test_a_host_comes_20_s_late(self, source: str, expected: dict[str, str], s3_root: str, tmp_path: Path) -> None:
        with job(tmp_path, 2, source, s3_root, *FLAGS, *WORKER) as two:
            two.start(1)  # the head itself comes last: the other one waits for it, then finds it
            time.sleep(20.0)
            assert two.hosts[1].process.poll() is None, two.log
            two.start(0)
            assert two.wait() == [0, 0], two.log
        assert hashes_at(s3_root) == expected
        assert "2 hosts" in two.head.message
        assert not (two.hosts[1].folder / "output" / "message").exists()  # messages of all hosts would be put together
        two.assert_no_process_is_left()

    def test_three_hosts(self, source: str, expected: dict[str, str], s3_root: str, tmp_path: Path) -> None:
        with job(tmp_path, 3, source, s3_root, *FLAGS, *WORKER) as three:
            three.start(0, 1)
            three.wait_until(lambda: "waiting" in three.head.said or "worker processes" in three.head.said)
            three.start(2)
            assert three.wait() == [0, 0, 0], three.log
        assert hashes_at(s3_root) == expected
        assert "3 workers on 3 hosts" in three.head.said
        assert "Traceback" not in three.log
        assert all("the job is done" in host.said for host in three.hosts[1:])
        three.assert_no_process_is_left()


@pytest.mark.slow
@pytest.mark.usefixtures("s3_env")
def test_three_hosts_cost_at_most_10_s_more_than_a_local_build(source: str, s3_root: str, tmp_path: Path) -> None:
    more = []
    for number in range(3):  # the best of three pairs: other work on the machine only adds
        began = time.monotonic()
        done = run(command(source, f"{s3_root}/local{number}", "--shards", "3", "--workers", "3"))
        assert done.returncode == 0, done.stderr
        local_s = time.monotonic() - began
        with job(tmp_path / str(number), 3, source, f"{s3_root}/job{number}", *FLAGS, *WORKER) as three:
            began = time.monotonic()
            three.start()
            assert three.wait() == [0, 0, 0], three.log
            more.append(time.monotonic() - began - local_s)
    assert min(more) <= 10, more


@pytest.mark.usefixtures("s3_env")
class TestHostsThatDoNotCome:
    def test_the_job_fails_everywhere_and_says_who_is_missing(self, source: str, s3_root: str, tmp_path: Path) -> None:
        for deadline_s in (6, 24, 96):  # the second host is ready in time, if need be on a busy machine
            with job(tmp_path / str(deadline_s), 3, source, s3_root, *FLAGS, *WORKER) as three:
                three.start(1)
                three.start(0, deadline_s=deadline_s)
                assert three.wait() == [1, 1], three.log
            message = three.head.message
            if message.startswith("failed (exit 1): 2 of 3 hosts are ready"):
                break
        assert f"2 of 3 hosts are ready, 127.0.0.3 did not come within {deadline_s} s" in message
        assert "--min-hosts 2" in message
        assert "127.0.0.3 did not come" in three.hosts[1].said
        assert staged_at(s3_root) == {}

    @pytest.mark.slow
    def test_fewer_hosts_do_where_they_are_enough(
        self, source: str, expected: dict[str, str], s3_root: str, tmp_path: Path
    ) -> None:
        with job(tmp_path, 3, source, s3_root, *FLAGS, *WORKER, "--min-hosts", "2") as three:
            three.start(1)
            three.start(0, deadline_s=7.0)
            assert three.wait() == [0, 0], three.log
        assert hashes_at(s3_root) == expected
        assert "2 of 3 hosts, without 127.0.0.3, which did not come" in three.head.message
        assert not (
            three.hosts[1].folder / "output" / "message"
        ).exists()  # messages of all hosts would be put together
        three.assert_no_process_is_left()

    def test_a_head_that_never_comes(self, tmp_path: Path) -> None:
        with job(tmp_path, 2, "s3://b/raw/", "s3://b/out", *FLAGS, deadline_s=1.5) as two:
            two.start(1)
            assert two.wait() == [1], two.log
        assert "the head 127.0.0.1 did not answer" in two.hosts[1].said


@pytest.mark.usefixtures("s3_env")
class TestFailures:
    def test_a_source_that_is_not_there_fails_everywhere(self, s3_root: str, tmp_path: Path) -> None:
        with job(tmp_path, 2, s3_root + "/nothing/", s3_root + "/out", *FLAGS, *WORKER) as two:
            two.start()
            assert two.wait() == [1, 1], two.log
        assert two.head.message.startswith(f"failed (exit 1): no objects in {s3_root}/nothing/")
        assert "no objects in" in two.hosts[1].said
        two.assert_no_process_is_left()

    def test_a_wrong_call_is_exit_2_everywhere_and_starts_nothing(self, s3_root: str, tmp_path: Path) -> None:
        with job(tmp_path, 2, s3_root + "/raw/", s3_root, *FLAGS, "--max-length", "8") as two:
            two.start()
            assert two.wait() == [2, 2], two.log
        assert two.head.message.startswith("the call is wrong (exit 2): --max-length needs --overflow")

    def test_an_unknown_flag(self, s3_root: str, tmp_path: Path) -> None:
        with job(tmp_path, 1, s3_root + "/raw/", s3_root, "--no-such-flag") as one:
            one.start()
            assert one.wait() == [2], one.log
        assert one.head.message == "the call is wrong (exit 2): unrecognized arguments: --no-such-flag"

    @pytest.mark.slow
    @pytest.mark.parametrize("taken", ["--port", "--scheduler-port"])
    def test_a_port_that_another_program_has(self, taken: str, source: str, s3_root: str, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other, job(tmp_path, 2, source, s3_root, *FLAGS, *WORKER) as two:
            threading.Thread(target=_hang_up_on_all, args=(other,), daemon=True).start()
            two.ports[taken] = other.getsockname()[1]
            two.start()
            began = time.monotonic()
            codes = two.wait()
            assert time.monotonic() - began < 60  # and not at the start deadline
        assert 0 not in codes, two.log
        assert f"{taken} chooses another port" in two.head.message
        assert f"{taken} chooses another port" in two.hosts[1].said
        two.assert_no_process_is_left()

    def test_a_build_that_is_killed_is_told_of(self, source: str, s3_root: str, tmp_path: Path) -> None:
        with job(tmp_path, 1, source, s3_root, *FLAGS, *WORKER) as one:
            one.start()
            one.wait_until(lambda: bool(builds_of(one)))
            builds_of(one)[0].kill()  # as the kernel does when memory is short
            assert one.wait() == [1], one.log
        assert "the build was killed by SIGKILL: was there too little memory on the head?" in one.head.message
        one.assert_no_process_is_left()

    @pytest.mark.slow
    def test_a_folder_that_is_not_shared(self, tmp_path: Path) -> None:
        with job(tmp_path, 2, "SOURCE", str(tmp_path / "out"), *FLAGS, *WORKER, "--shared-filesystem") as two:
            source = two.head.folder / "raw"
            source.mkdir()
            (source / "a.json").write_text('{"id": "a", "text": "a"}')
            two.arguments = [str(source), *two.arguments[1:]]
            two.start()
            assert two.wait() == [0, 0], two.log  # on this machine it is
        (tmp_path / "again").mkdir()
        with job(tmp_path / "again", 2, str(source), str(tmp_path / "other"), *FLAGS, *WORKER) as two:
            two.start()
            assert two.wait() == [2, 2], two.log
        assert "each of the 2 hosts would write into its own: give an s3:// URI" in two.head.message

    @pytest.mark.slow
    def test_a_head_that_works_alone(self, source: str, expected: dict[str, str], s3_root: str, tmp_path: Path) -> None:
        with job(tmp_path, 2, source, s3_root, *FLAGS, "--scheduler", "serial") as two:
            two.start()
            assert two.wait() == [0, 0], two.log
        assert hashes_at(s3_root) == expected

    @pytest.mark.slow
    @pytest.mark.parametrize("after_s", [0.15, 0.5, 1.5])
    def test_a_head_that_is_killed_fails_the_others(
        self, after_s: float, source: str, s3_root: str, tmp_path: Path
    ) -> None:
        with job(tmp_path, 2, source, s3_root, *FLAGS, *WORKER) as two:
            two.start()
            two.wait_until(lambda: bool(builds_of(two)))
            time.sleep(after_s)  # the build connects to the scheduler, or is at work
            two.head.process.kill()  # this process alone: what it started must not go on without it
            assert two.wait()[1] == 1, two.log
        assert "is gone and did not say how the job ended" in two.hosts[1].said
        two.assert_no_process_is_left()


class TestInTheMiddle:
    """The first tasks are staged, the others wait until other rules are set: so there is a middle, however slow the machine."""

    @pytest.fixture(autouse=True)
    def _held_writes(self, s3_faults) -> None:
        staged = {"method": "PUT", "match": "/scan-", "key": ".json"}
        s3_faults.set_rules([{"kind": "delay", "delay": 0, "times": 3, **staged}, {"kind": "hold", **staged}])

    def _begun(self, output: str) -> bool:
        return 0 < len(staged_at(output)) < PARTS // 2

    def test_the_job_goes_on_without_a_host_that_is_lost(
        self, source: str, expected: dict[str, str], s3_root: str, tmp_path: Path, s3_faults: FaultProxy
    ) -> None:
        with job(tmp_path, 3, source, s3_root, *FLAGS, *WORKER) as three:
            three.start()
            three.wait_until(lambda: self._begun(s3_root))
            three.hosts[1].kill()
            s3_faults.set_rules([])
            codes = three.wait()
        assert codes == [0, -signal.SIGKILL, 0], three.log
        assert hashes_at(s3_root) == expected
        assert "lost the host 127.0.0.2" in three.head.said
        assert "without 127.0.0.2, lost on the way" in three.head.message

    @pytest.mark.slow
    def test_worker_processes_that_end_are_started_again(
        self, source: str, expected: dict[str, str], s3_root: str, tmp_path: Path, s3_faults: FaultProxy
    ) -> None:
        with job(tmp_path, 2, source, s3_root, *FLAGS, *WORKER) as two:
            two.start()
            two.wait_until(lambda: self._begun(s3_root))
            for process in two.hosts[1].tree():
                if "workers" in process.cmdline():
                    process.kill()
            s3_faults.set_rules([])
            assert two.wait() == [0, 0], two.log
        assert "the worker processes ended (exit -9); starting them again" in two.hosts[1].said
        assert hashes_at(s3_root) == expected

    @pytest.mark.parametrize(
        ("number", "then"),
        [
            (signal.SIGINT, signal.SIGTERM),
            pytest.param(signal.SIGTERM, signal.SIGTERM, marks=pytest.mark.slow),
            pytest.param(signal.SIGTERM, signal.SIGINT, marks=pytest.mark.slow),
        ],
    )
    def test_a_stopped_job_continues_when_it_is_run_again(
        self,
        number: signal.Signals,
        then: signal.Signals,
        source: str,
        expected: dict[str, str],
        s3_root: str,
        tmp_path: Path,
        s3_faults: FaultProxy,
    ) -> None:
        with job(tmp_path / "first", 2, source, s3_root, *FLAGS, *WORKER) as first:
            first.start()
            first.wait_until(lambda: self._begun(s3_root))
            for host in first.hosts:  # the platform stops all containers
                os.killpg(host.process.pid, number)
            time.sleep(0.2)
            for host in first.hosts:  # a second signal does not break the end off
                os.killpg(host.process.pid, then)
            assert set(first.wait()) == {128 + number}, first.log
        assert first.head.message.startswith(f"stopped by {number.name}: ")
        assert "Traceback" not in first.log
        first.assert_no_process_is_left()
        staged = staged_at(s3_root)
        assert staged
        assert "manifest.json" not in hashes_at(s3_root)
        s3_faults.set_rules([{"kind": "delay", "method": "GET", "match": "/raw/part-", "delay": 0.3}])
        with job(tmp_path / "second", 2, source, s3_root, *FLAGS, *WORKER) as second:
            second.start()
            second.wait_until(lambda: len(staged_at(s3_root)) > len(staged) or second.head.process.poll() is not None)
            now = staged_at(s3_root)
            assert second.wait() == [0, 0], second.log
        assert {name: now[name] for name in staged if name in now} == staged or not now  # not written again
        assert hashes_at(s3_root) == expected


@pytest.mark.usefixtures("s3_env")
class TestMountedFolders:
    FILES = documents(90, seed=3)

    def _mount(self, running: Job, shares: list[slice]) -> str:
        for host, share in zip(running.hosts, shares, strict=True):
            folder = host.folder / "processing" / "input" / "raw" / "deep"
            folder.mkdir(parents=True)
            for number, value in list(enumerate(self.FILES))[share]:
                (folder / f"d{number:03d}.json").write_text(json.dumps(value))
        return str(running.head.folder / "processing" / "input" / "raw")

    def _rows(self, uri: str, count: int) -> None:
        manifest = json.loads(open_store(uri).get("manifest.json"))
        assert manifest["ledger"]["found"] == manifest["ledger"]["written"] == count

    def test_sharded_with_an_empty_folder(self, s3_root: str, tmp_path: Path) -> None:
        with job(tmp_path, 3, "SOURCE", s3_root, *FLAGS, *WORKER) as three:
            source = self._mount(three, [slice(0, 0), slice(0, 60), slice(60, 90)])
            three.arguments = [source, *three.arguments[1:]]
            three.start()
            assert three.wait() == [0, 0, 0], three.log
        assert "0 files in" in three.head.said
        self._rows(s3_root, 90)
        folder = tmp_path / "whole"
        for number, value in enumerate(self.FILES):
            (folder / "deep").mkdir(parents=True, exist_ok=True)
            (folder / "deep" / f"d{number:03d}.json").write_text(json.dumps(value))
        build_here(folder, tmp_path / "local", **SETTINGS)
        local = json.loads((tmp_path / "local" / "manifest.json").read_bytes())
        assert json.loads(open_store(s3_root).get("manifest.json"))["fingerprint"] == local["fingerprint"]

    @pytest.mark.slow
    def test_whole_on_every_host_and_again_with_other_times(self, s3_root: str, tmp_path: Path) -> None:
        manifests = []
        for name in ("first", "second"):
            with job(tmp_path / name, 2, "SOURCE", s3_root + "/" + name, *FLAGS, *WORKER) as two:
                source = self._mount(two, [slice(0, 90), slice(0, 90)])
                two.arguments = [source, *two.arguments[1:]]
                two.start()
                assert two.wait() == [0, 0], two.log
            self._rows(s3_root + "/" + name, 90)
            manifests.append(open_store(s3_root + "/" + name).get("manifest.json"))
        assert manifests[0] == manifests[1]

    def test_hosts_that_hold_different_files_under_one_name(self, s3_root: str, tmp_path: Path) -> None:
        with job(tmp_path, 2, "SOURCE", s3_root, *FLAGS, *WORKER) as two:
            source = self._mount(two, [slice(0, 3), slice(0, 3)])
            (two.hosts[1].folder / "processing/input/raw/deep/d001.json").write_text("{}")
            two.arguments = [source, *two.arguments[1:]]
            two.start()
            assert two.wait() == [1, 1], two.log
        assert "deep/d001.json is not the same file on all hosts" in two.head.message
        assert "127.0.0.1" in two.head.message
