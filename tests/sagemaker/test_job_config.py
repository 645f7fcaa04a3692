"""What a host knows before it starts: its own flags, local places, the job file of the build, credentials."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from shardprep.adapters.sagemaker.credentials import wait_for_credentials
from shardprep.adapters.sagemaker.guest import Guest
from shardprep.adapters.sagemaker.hosts import Hosts
from shardprep.adapters.sagemaker.job_config import (
    BuildCall,
    Own,
    check_list,
    check_local_places,
    job_file,
    needs_credentials,
)
from shardprep.adapters.sagemaker.meeting import Meeting, Wire
from shardprep.adapters.sagemaker.mounts import LOOK_ENTRIES
from shardprep.cli import parse_build
from shardprep.errors import ConfigError, WorkerError
from shardprep.prep.cluster import memory_share
from shardprep.prep.settings import Settings
from tests.servers import set_environment

BUILD = ["s3://bucket/raw/", "s3://bucket/out", "--tokenizer", "t.json"]


def own(root: Path, *flags: str) -> Own:
    return Own.parse([*flags, "--ml-root", str(root), "--scratch", str(root / "tmp")])[0]


def call(output: str, **settings: Any) -> BuildCall:
    return BuildCall({"source": "s3://b/raw/", "output": output, "tokenizer": "t"}, Settings(**settings))


def test_own_flags_and_those_of_the_build_stay_apart(tmp_path: Path) -> None:
    mine, rest = Own.parse(["--min-hosts", "2", *BUILD, "--workers", "3", "--start-deadline", "5", "--json"])
    assert (mine.min_hosts, mine.start_deadline_s, mine.ml_root, mine.port) == (2, 5.0, "/opt/ml", 8785)
    assert rest == [*BUILD, "--workers", "3", "--json"]
    assert Own.parse(["--allow-fewer-hosts"])[0].min_hosts == 1
    assert Own.parse([])[0].start_deadline_s >= 300  # instances of a job do not start together
    for wrong in (["--min-hosts", "0"], ["--start-deadline", "0"]):
        with pytest.raises(ConfigError):
            Own.parse(wrong)


@pytest.mark.parametrize(
    "flags",
    [
        [],
        [
            "--column",
            "label:int64",
            "--column",
            "meta.lang",
            "--split",
            "train=0.9,test=0.1",
            "--seed",
            "3",
            "--no-eos",
        ],
        [
            "--storage-option",
            "region=eu-central-1",
            "--storage-option",
            "endpoint_url=http://x/?a=b=c",
            "--bucket-edges",
            "8,16",
        ],
        ["--text-field", 'a"b\\ü日🙂\x7f\t', "--eos-token", "0", "--memory-limit", "4GB", "--scheduler", "serial"],
        ["--source-list", "s3://b/list"],
    ],
)
def test_the_job_file_says_what_the_arguments_said(flags: list[str], tmp_path: Path) -> None:
    arguments = [*BUILD[1:], *flags] if "--source-list" in flags else [*BUILD, *flags]
    said = parse_build(arguments)
    path = tmp_path / "job.toml"
    path.write_text(job_file(said.places, said.settings), encoding="utf-8")
    assert parse_build(["--config", str(path)]) == said
    tomllib.loads(path.read_text(encoding="utf-8"))


def test_a_local_output_is_for_one_host(tmp_path: Path) -> None:
    check_local_places(call(str(tmp_path / "out")), own(tmp_path), 1)
    check_local_places(call(str(tmp_path / "out"), shared_filesystem=True), own(tmp_path), 2)
    check_local_places(call("s3://b/out"), own(tmp_path), 2)
    with pytest.raises(
        ConfigError, match=r"the output .*/out is a local folder, and each of the 2 hosts .* give an s3:// URI"
    ):
        check_local_places(call(str(tmp_path / "out")), own(tmp_path), 2)
    with pytest.raises(ConfigError, match="the staging folder /tmp/s is a local folder"):
        check_local_places(call("s3://b/out", staging="/tmp/s"), own(tmp_path), 2)


def test_a_list_of_local_files_is_for_one_host(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# a comment\n\ns3://b/one\n")
    check_list(str(path))
    check_list("s3://b/list")
    path.write_text("s3://b/one\nraw/two.json\n")
    with pytest.raises(ConfigError, match=r"line 2 of .*list\.txt names the local file raw/two\.json"):
        check_list(str(path))
    with pytest.raises(ConfigError, match="cannot read the list"):
        check_list(str(tmp_path / "none"))


def write_job(root: Path, value: Any) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "processingjobconfig.json").write_text(value if isinstance(value, str) else json.dumps(value))


def upload(path: str, mode: str) -> dict[str, Any]:
    s3 = {"S3Uri": "s3://b/o", "LocalPath": path, "S3UploadMode": mode}
    return {
        "Environment": {"SECRET": "x"},
        "ProcessingOutputConfig": {"Outputs": [{"OutputName": "o", "S3Output": s3}], "KmsKeyId": ""},
    }


def test_an_output_that_is_uploaded_while_it_is_written_is_refused(tmp_path: Path) -> None:
    output = str(tmp_path / "processing" / "output" / "set")
    write_job(tmp_path, upload("/opt/ml/processing/output", "EndOfJob"))
    check_local_places(call(output), own(tmp_path), 1)
    write_job(tmp_path, upload("/opt/ml/processing/output", "Continuous"))
    check_local_places(call(str(tmp_path / "elsewhere")), own(tmp_path), 1)
    with pytest.raises(ConfigError, match="set S3UploadMode to EndOfJob") as caught:
        check_local_places(call(output), own(tmp_path), 1)
    assert "SECRET" not in str(caught.value)


def test_temporary_files_are_not_uploaded(tmp_path: Path) -> None:
    write_job(tmp_path, upload(str(tmp_path / "tmp"), "EndOfJob"))
    with pytest.raises(ConfigError, match="would be uploaded: give another --scratch"):
        check_local_places(call("s3://b/o"), own(tmp_path), 1)


@pytest.mark.parametrize(
    "value",
    ["{", "[]", "null", {}, {"ProcessingOutputConfig": None}, {"ProcessingOutputConfig": {"Outputs": None}},
     {"ProcessingOutputConfig": {"Outputs": [1, {}, {"S3Output": None}, {"S3Output": {"LocalPath": 1}}]}}],
)  # fmt: skip
def test_a_job_config_of_any_shape_is_borne(value: Any, tmp_path: Path) -> None:
    write_job(tmp_path, value)
    check_local_places(call(str(tmp_path / "out")), own(tmp_path), 1)


def test_who_needs_credentials() -> None:
    assert needs_credentials(call("/out"))
    assert not needs_credentials(call("/out", storage_options=(("skip_signature", "true"),)))
    assert not needs_credentials(
        BuildCall({"source": "gs://b/raw", "output": "/out", "tokenizer": "org/name"}, Settings())
    )
    assert needs_credentials(
        BuildCall({"source": "/raw", "output": "/out", "tokenizer": "t"}, Settings(staging="s3://b/s"))
    )


@pytest.fixture
def role(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A container's credential service; the list holds the statuses that it answers with, the last one for ever."""
    statuses = [200]
    told = {"AccessKeyId": "AKIDEXAMPLE", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    set_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0.0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.server_port}/")
    yield statuses
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_role_that_does_not_answer_at_first_is_waited_for(role: list[int]) -> None:
    role[:] = [500] * 4 + [200]
    said: list[str] = []
    assert wait_for_credentials(60.0, said.append, sleep=lambda _: None)
    assert said[0].startswith("no AWS credentials yet")
    assert said[1].startswith("credentials are there")


def test_a_role_that_never_answers_ends_the_waiting(role: list[int]) -> None:
    role[:] = [500]
    said: list[str] = []
    assert not wait_for_credentials(0.0, said.append)
    assert "trying all the same" in said[0]


def test_memory_is_shared_and_some_is_left() -> None:
    assert memory_share(64 << 30, 16, 2 << 30) == ((64 << 30) - int((64 << 30) * 0.1)) // 16
    assert memory_share(64 << 30, 16, 16 << 30) == (48 << 30) // 16
    assert memory_share(2 << 30, 1, 16 << 30) == 1 << 30  # never more than half is kept


def meeting(*expected: str) -> Meeting:
    return Meeting("127.0.0.1", 0, expected, {"scheduler_port": 1}, lambda _: None)


def wire_to(place: Meeting) -> Wire:
    return Wire(socket.create_connection(("127.0.0.1", place.port)))


def test_strangers_are_turned_away_and_noise_does_no_harm() -> None:
    place = meeting("algo-2")
    try:
        stranger = wire_to(place)
        stranger.send(host="algo-9")
        assert stranger.lines.get(timeout=60)["end"] == "refused"
        stranger.close()
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b""):
            with socket.create_connection(("127.0.0.1", place.port)) as connection:
                connection.sendall(noise)
            with socket.create_connection(("127.0.0.1", place.port), timeout=60) as connection:
                connection.sendall(noise or b"\n")
                told = b"".join(iter(lambda: connection.recv(4096), b""))  # it hangs up, whatever came
                assert b"refused" in told
        assert place.missing == ["algo-2"]
    finally:
        place.close()


def test_what_is_in_a_large_folder_is_heard() -> None:
    place = meeting("algo-2")
    try:
        seen = [[f"{number:05d}-{'ü' * 100}", 1 << 40, time.time_ns()] for number in range(LOOK_ENTRIES)]
        guest = wire_to(place)
        guest.send(host="algo-2", looked={"/mnt/fsx/raw": {"entries": seen}})
        assert place.wait(lambda: bool(place.present), 200)
        assert place.present[0].said["looked"]["/mnt/fsx/raw"]["entries"] == seen
        guest.close()
    finally:
        place.close()


def test_a_host_leaves_a_port_that_is_not_the_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardprep.adapters.sagemaker.guest.WAIT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as other:

        def hang_up_on_all() -> None:
            with suppress(OSError):
                while True:
                    other.accept()[0].close()

        thread = threading.Thread(target=hang_up_on_all)
        thread.start()
        try:
            mine = own(tmp_path, "--port", str(other.getsockname()[1]))
            guest = Guest(Hosts("127.0.0.2", ("127.0.0.1", "127.0.0.2")), mine, str(tmp_path), lambda _: None)
            with pytest.raises(WorkerError, match="is not the head of this job: --port chooses another"):
                guest.run()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):  # a host that ends heeds none
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            other.shutdown(socket.SHUT_RDWR)
            thread.join(200)


def test_a_host_that_comes_back_is_the_same_host_and_hears_the_end() -> None:
    place = meeting("algo-2", "algo-3")
    try:
        first = wire_to(place)
        first.send(host="algo-2", ready=True)
        assert first.lines.get(timeout=60) == {"scheduler_port": 1}
        assert place.wait(lambda: place.missing == ["algo-3"], 200)
        first.close()
        assert place.wait(lambda: place.missing == ["algo-2", "algo-3"], 200)
        again = wire_to(place)
        again.send(host="algo-2", ready=True)
        assert again.lines.get(timeout=60) == {"scheduler_port": 1}
        assert place.wait(lambda: place.missing == ["algo-3"], 200)
        ending = threading.Thread(
            target=place.end, args=("done", 0, "x"), kwargs={"patience_s": 600.0, "late": ("algo-3",)}
        )
        ending.start()
        assert again.lines.get(timeout=60) == {"end": "done", "exit_code": 0, "why": "x"}
        again.close()
        late = wire_to(place)
        late.send(host="algo-3")
        assert late.lines.get(timeout=60)["end"] == "done"
        late.close()
        ending.join(200)
        assert not ending.is_alive()
    finally:
        place.close()


def test_a_port_that_is_taken_is_named() -> None:
    place = meeting()
    try:
        with pytest.raises(
            ConfigError, match=f"cannot listen on 127.0.0.1:{place.port}: .*; --port chooses another port"
        ):
            Meeting("127.0.0.1", place.port, (), {}, lambda _: None)
    finally:
        place.close()
