"""Names on the hub, against a small server that answers as the hub does; in processes of their own, since the hub's
client reads its address when it is imported."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "/good/model/resolve/main/tokenizer.json": b'{"tokenizer": 1}',
    "/good/model/resolve/main/tokenizer_config.json": b'{"eos_token": "x"}',
    "/good/model/resolve/v2/tokenizer.json": b'{"tokenizer": 2}',
    "/good/bare/resolve/main/tokenizer.json": b'{"tokenizer": 3}',
    "/good/none/resolve/main/README.md": b"",
}


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        data = FILES.get(self.path)
        known = any(name.startswith("/".join(self.path.split("/")[:3]) + "/") for name in FILES)
        self.send_response(200 if data is not None else 404)
        self.send_header("ETag", f'"{abs(hash(self.path)):x}"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.send_header("Content-Length", str(len(data or b"")))
        if data is None:
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
        self.end_headers()
        if body:
            self.wfile.write(data or b"")

    def log_message(self, *args):
        pass


@pytest.fixture
def hub():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def fetch(name, tmp_path, **environment):
    program = f"""
from shardprep.errors import TokenizerError
from shardprep.formats.hub import from_hub
try:
    print(from_hub({name!r}))
except TokenizerError as error:
    print("TokenizerError", error, error.fields)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", **environment},
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("good/model", (b'{"tokenizer": 1}', b'{"eos_token": "x"}')),
        ("good/model@v2", (b'{"tokenizer": 2}', None)),
        ("good/bare", (b'{"tokenizer": 3}', None)),
    ],
)
def test_a_name_gives_the_tokenizer_and_its_config_where_there_is_one(hub, tmp_path, name, found):
    assert fetch(name, tmp_path, HF_ENDPOINT=hub) == repr(found)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("good/none", "it has no tokenizer.json"),
        ("bad/model", "on the Hugging Face hub: "),
        ("a b/c", "on the Hugging Face hub: "),
    ],
    ids=["no such file", "no such model", "no name"],
)
def test_a_name_that_leads_nowhere_says_so(hub, tmp_path, name, reason):
    said = fetch(name, tmp_path, HF_ENDPOINT=hub)
    assert said.startswith(f"TokenizerError no tokenizer {name!r}: it is no file here, and ")
    assert reason in said
    assert "Give the path or URI of a tokenizer.json" in said


@pytest.mark.parametrize(
    "offline",
    [
        {"HF_HUB_OFFLINE": "1"},
        pytest.param({"HF_ENDPOINT": "http://127.0.0.1:9"}, marks=pytest.mark.slow),  # its client tries for 25 s
    ],
    ids=["told so", "nobody there"],
)
def test_without_the_hub_a_clear_error_comes(tmp_path, offline):
    said = fetch("good/model", tmp_path, **offline)
    assert said.startswith("TokenizerError no tokenizer 'good/model'")
    assert "Give the path or URI of a tokenizer.json" in said
    assert "\n" not in said


def test_without_the_hub_its_cache_serves_what_it_knows_for_certain(hub, tmp_path):
    for name in ("good/model", "good/bare"):
        assert fetch(name, tmp_path, HF_ENDPOINT=hub) == fetch(name, tmp_path, HF_HUB_OFFLINE="1")
    [config] = tmp_path.glob("hub/models--good--model/snapshots/*/tokenizer_config.json")
    config.unlink()  # now nobody knows which end token it names
    assert "no tokenizer 'good/model'" in fetch("good/model", tmp_path, HF_HUB_OFFLINE="1")
