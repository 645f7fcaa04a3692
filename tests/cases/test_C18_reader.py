"""Part (a) without torch: a process that has read goes on in two forked children. DataLoader's own: tests/torch."""

import json
import subprocess
import sys
import uuid

import pytest

from tests.cases.command import environment
from tests.cases.inputs import BYTE
from tests.cases.reading import documents
from tests.servers import BUCKET, SeaweedFS
from tests.servers import environment as of_server

PROGRAM = """
import json, os, sys
import tokenizers
import shardprep
from shardprep.prep.sources import list_source

source, root, cache, tokenizer = sys.argv[1:]
assert "TOKENIZERS_PARALLELISM" not in os.environ
assert len(list_source(source).table) == 1
assert tokenizers.Tokenizer.from_file(tokenizer).encode_batch(["one", "two"] * 500)[0].ids
dataset = shardprep.open(root, cache_dir=cache)
first = next(iter(dataset.loader(batch_size=1)))  # broken off: the loader's threads ran, the store was used
assert len(first.ids) == 1
shared = dataset.loader(batch_size=4, rank=0, world_size=1)
pipes = []
for rank in range(2):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            loader = dataset.loader(batch_size=4, rank=rank, world_size=2, num_threads=2)
            ids = [name for batch in loader for name, w in zip(batch.ids, batch.weight) if w]
            both = [name for batch in shared for name, w in zip(batch.ids, batch.weight) if w]  # made before the fork
            os.write(write, json.dumps([ids, both]).encode())
        finally:
            os._exit(0)
    os.close(write)
    pipes.append((pid, read))
mine = [name for batch in shared for name, w in zip(batch.ids, batch.weight) if w]  # the parent reads on meanwhile
told = []
for pid, read in pipes:
    with os.fdopen(read, "rb") as answers:
        told.append(json.loads(answers.read()))
    os.waitpid(pid, 0)
print(json.dumps([told, mine]))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return documents(tmp_path_factory.mktemp("c18"), 100, 7)


@pytest.fixture(scope="module")
def server():
    with SeaweedFS() as running:
        yield running


def assert_read_in_forked_children(made, root, tmp_path, env):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    source = made.root.parent / "in"
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(program), str(source), root, str(tmp_path / "cache"), str(BYTE)],
        env=environment(env), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    told, mine = json.loads(ran.stdout)
    everything = sorted(map(str, range(100)))
    assert sorted(name for ids, _ in told for name in ids) == everything
    assert sorted(mine) == everything
    assert all(both == mine for _, both in told)


def test_from_a_local_folder(made, tmp_path):
    assert_read_in_forked_children(made, str(made.root), tmp_path, {})


def test_from_s3_whose_connections_do_not_survive_a_fork(made, server, tmp_path):
    import obstore
    from obstore.store import S3Store

    place = uuid.uuid4().hex[:12]
    env = of_server(server.endpoint)
    store = S3Store(
        BUCKET, prefix=place, endpoint=server.endpoint, access_key_id=env["AWS_ACCESS_KEY_ID"],
        secret_access_key=env["AWS_SECRET_ACCESS_KEY"], region=env["AWS_REGION"], client_options={"allow_http": True},
    )  # fmt: skip
    for path in (*made.files, made.root / "manifest.json"):
        obstore.put(store, str(path.relative_to(made.root)), path.read_bytes())
    root = f"s3://{BUCKET}/{place}"
    assert_read_in_forked_children(made, root, tmp_path, env)
