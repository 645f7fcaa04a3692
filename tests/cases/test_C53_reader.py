"""A failing reader is not a short epoch, in threads; worker processes that die are tested with tests/torch."""

import uuid

import pytest

import shardprep
from shardprep.errors import ManifestError, ShardprepError
from shardprep.formats import parquet
from shardprep.formats.collate import Collator
from shardprep.storage.store import open_store
from tests.cases.reading import counted, documents, once
from tests.fault_proxy import FaultProxy
from tests.servers import BUCKET, SeaweedFS, set_environment

THIRD = "00003-of-00005.parquet"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """docs_1000 in 5 shards, several row groups each."""
    return documents(tmp_path_factory.mktemp("c53"), 1000, 5, "--row-group-size", "4KiB")


@pytest.fixture(scope="module")
def server():
    with SeaweedFS() as running:
        yield running


@pytest.fixture
def remote(made, server, monkeypatch):
    """The data set on S3, behind the fault proxy: (its URI, the proxy)."""
    set_environment(monkeypatch, server.endpoint)
    root = f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"  # a process keeps the store that it once opened for an address
    store = open_store(root)
    for path in (*made.files, made.root / "manifest.json"):
        store.put(str(path.relative_to(made.root)), path.read_bytes())
    store.close()
    with FaultProxy(server.port) as proxy:
        set_environment(monkeypatch, proxy.endpoint)
        yield root, proxy


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["auto", "fsspec"])
def test_two_resets_after_60_percent_then_good(remote, tmp_path, threads, kind):
    root, proxy = remote
    proxy.set_rules([{"kind": "reset_after", "key": THIRD, "method": "GET", "share": 0.6, "times": 2}])
    dataset = shardprep.open(root, cache_dir=tmp_path / "cache", store=kind)
    assert counted(dataset.loader(batch_size=8, num_threads=threads)) == once(1000)
    assert proxy.counts()["faults"] == {"reset_after": 2}


def test_always_is_an_exception_that_names_the_shard(remote, made, tmp_path):
    root, proxy = remote
    proxy.set_rules([{"kind": "reset_after", "key": THIRD, "method": "GET", "share": 0.6}])
    loader = shardprep.open(root, cache_dir=tmp_path / "cache").loader(batch_size=8, num_threads=2)
    seen = []
    with pytest.raises(ShardprepError, match="00003-of-00005"):  # noqa: PT012
        for batch in loader:
            seen += batch.ids
    assert {row["id"] for row in made.rows[600:800]}.isdisjoint(seen)
    assert proxy.counts()["faults"]["reset_after"] <= 60  # tries are bounded
    state = loader.state_dict()
    proxy.set_rules([])  # the store is well again: training goes on from the last step, in the same process
    loader.load_state_dict(state)
    rest = counted(loader)
    first = counted(
        b for b in shardprep.open(root, cache_dir=tmp_path / "cache").loader(batch_size=8) if b.step < state["step"]
    )
    assert first + rest == once(1000)


@pytest.mark.parametrize("raised", [StopIteration(), StopIteration("value"), GeneratorExit(), KeyError("x")])
def test_an_exception_inside_decoding_surfaces_as_an_error(made, tmp_path, monkeypatch, raised):
    decode = parquet.decode_row_group

    def failing(file, group):
        block = decode(file, group)
        if block.columns.column(0)[0].as_py() in {row["id"] for row in made.rows[600:800]}:
            raise raised
        return block

    monkeypatch.setattr(parquet, "decode_row_group", failing)
    loader = shardprep.open(made.root, cache_dir=tmp_path / "cache").loader(batch_size=8, num_threads=2)
    with pytest.raises((ManifestError, GeneratorExit)) as caught:
        list(loader)
    assert isinstance(raised, GeneratorExit) or "00003-of-00005" in str(caught.value)


@pytest.mark.parametrize("raised", [StopIteration(), KeyError("x"), MemoryError()])
def test_an_exception_inside_collating_surfaces_at_its_own_place(made, tmp_path, monkeypatch, raised):
    batches = Collator.batches

    def failing(self, specs, *given):
        if any(spec.round == 40 for spec in specs):
            raise raised
        return batches(self, specs, *given)

    monkeypatch.setattr(Collator, "batches", failing)
    loader = shardprep.open(made.root, cache_dir=tmp_path / "cache").loader(batch_size=8, num_threads=2)
    seen = []
    with pytest.raises((RuntimeError, KeyError, MemoryError)):
        seen.extend(one.round for one in loader)
    assert seen == list(range(40))
    assert loader.state_dict()["step"] == 40
