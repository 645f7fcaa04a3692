"""Who the hosts of a job are: the platform's files as they are, odd, and broken."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from shardprep.adapters.sagemaker.hosts import Hosts, bind_address, connect, find_hosts
from shardprep.errors import ConfigError, WorkerError
from tests.servers import free_port

PROCESSING, TRAINING = "config/resourceconfig.json", "input/config/resourceconfig.json"


def write(root: Path, place: str, value: Any) -> None:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def test_the_processing_folder_comes_before_the_training_folder(tmp_path: Path) -> None:
    write(tmp_path, TRAINING, {"current_host": "t-1", "hosts": ["t-1"]})
    assert find_hosts(str(tmp_path)) == Hosts("t-1", ("t-1",))
    write(tmp_path, PROCESSING, {"current_host": "p-1", "hosts": ["p-1"]})
    assert find_hosts(str(tmp_path)) == Hosts("p-1", ("p-1",))


def test_no_file_is_no_job(tmp_path: Path) -> None:
    assert find_hosts(str(tmp_path)) is None


def test_names_sort_as_texts_and_no_digit_is_read(tmp_path: Path) -> None:
    names = [f"algo-{n}" for n in range(1, 12)]
    write(tmp_path, PROCESSING, {"current_host": "algo-2", "hosts": names})
    hosts = find_hosts(str(tmp_path))
    assert hosts is not None
    assert hosts.names[:4] == ("algo-1", "algo-10", "algo-11", "algo-2")
    assert (hosts.head, hosts.rank, hosts.is_head) == ("algo-1", 3, False)
    assert hosts.others[0] == "algo-10"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            {"current_host": "a", "hosts": ["b", "a"], "network_interface_name": "eth0", "x": {"y": 1}},
            ("a", ("a", "b")),
        ),
        ({"hosts": ["only"]}, ("only", ("only",))),
        ({"current_host": "only"}, ("only", ("only",))),
        ({"current_host": "a", "hosts": ["a", "a"]}, ("a", ("a",))),
    ],
)
def test_unknown_and_missing_keys(value: dict[str, Any], expected: tuple[str, tuple[str, ...]], tmp_path: Path) -> None:
    write(tmp_path, PROCESSING, value)
    assert find_hosts(str(tmp_path)) == Hosts(*expected)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no JSON object"),
        ({"current_host": "a", "hosts": []}, "names no hosts"),
        ({"current_host": "a", "hosts": "a"}, "names no hosts"),
        ({"current_host": "a", "hosts": ["a", 1]}, "names no hosts"),
        ({"hosts": ["a", "b"]}, "does not say which host this is"),
        ({"current_host": "c", "hosts": ["a", "b"]}, "'c' is none of the job's hosts: a, b"),
    ],
)
def test_a_file_that_cannot_be_used(value: Any, words: str, tmp_path: Path) -> None:
    write(tmp_path, PROCESSING, value)
    with pytest.raises(ConfigError, match=words):
        find_hosts(str(tmp_path))


def test_a_host_listens_on_its_address_where_it_has_one() -> None:
    assert bind_address("127.0.0.3") == "127.0.0.3"
    assert bind_address("algo-1") == "0.0.0.0"


def test_a_name_that_is_not_known_yet_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS of a peer may come after the container: the name fails three times, then the port twice."""
    real, tries, said = socket.create_connection, [], []
    clock = iter(range(0, 1000, 6))

    def flaky(address: tuple[str, int], **rest: Any) -> socket.socket:
        tries.append(address)
        if len(tries) <= 3:
            raise socket.gaierror(-2, "Name or service not known")
        if len(tries) <= 5:
            raise ConnectionRefusedError(111, "Connection refused")
        return real(("127.0.0.1", address[1]), **rest)

    monkeypatch.setattr(socket, "create_connection", flaky)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect(
            "algo-1", port, deadline_s=300, say=said.append, clock=lambda: float(next(clock)), sleep=lambda _: None
        ).close()
    assert len(tries) == 6
    assert said == [f"waiting for the head algo-1 (port {port}) since 18 s: its name is not known yet"]


def test_the_deadline_names_host_port_and_reason() -> None:
    port = free_port()
    with pytest.raises(
        WorkerError, match=rf"the head 127\.0\.0\.1 did not answer on port {port} within 0\.2 s: Connection refused"
    ):
        connect("127.0.0.1", port, deadline_s=0.2, say=lambda _: None)
    with pytest.raises(WorkerError, match="its name is not known yet"):
        connect("no-such-host.invalid", port, deadline_s=0.01, say=lambda _: None)
