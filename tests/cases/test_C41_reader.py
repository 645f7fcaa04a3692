import pytest

import shardprep
from tests.cases.reading import counted, documents, once, played_together, ranks, real
from tests.invariants import Dataset


@pytest.fixture(scope="module")
def seven(tmp_path_factory):
    """The first 100 documents in 7 shards."""
    folder = tmp_path_factory.mktemp("c41")
    dataset = documents(folder, 100, 7)
    assert len(dataset.shards) == 7
    return folder


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("threads", [1, 2, 5, 9])  # 0 workers is one thread: nothing else runs
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_document_once(seven, world, threads, shuffle):
    loaders = ranks(seven / "out", seven / "cache", world, batch_size=4, num_threads=threads, shuffle=shuffle)
    rounds = played_together(loaders)
    assert counted(batch for together in rounds for batch in together) == once(100)


@pytest.mark.parametrize("batch_size", [1, 4, 12])
def test_with_8_ranks_none_is_empty(seven, batch_size):
    loaders = ranks(seven / "out", seven / "cache", 8, batch_size=batch_size)
    rows = [sum(len(real(batch)) for batch in loader) for loader in loaders]
    assert sum(rows) == 100
    assert min(rows) >= 12


def test_more_ranks_than_documents_play_as_many_rounds(tmp_path):
    documents(tmp_path, 5, 2)
    rounds = played_together(ranks(tmp_path / "out", tmp_path / "cache", 8, batch_size=4))
    assert counted(batch for together in rounds for batch in together) == once(5)


def test_the_order_is_the_manifests_not_that_of_a_listing(seven, tmp_path):
    """The manifest names the shards: files that lie about, or are touched in another order, change nothing."""
    first = [batch.ids for batch in ranks(seven / "out", seven / "cache", 1, batch_size=4)[0]]
    copied = tmp_path / "out"
    source = Dataset(seven / "out")
    for path in [*reversed(source.files), source.root / "manifest.json"]:
        target = copied / path.relative_to(source.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    (copied / source.shards[0]["name"]).with_name("00000-a-stray.parquet").write_bytes(source.files[0].read_bytes())
    again = shardprep.open(copied, cache_dir=tmp_path / "cache").loader(batch_size=4)
    assert [batch.ids for batch in again] == first
