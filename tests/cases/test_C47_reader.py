import json

import pytest

import shardprep
from tests.cases.reading import documents, once, real


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("c47")
    root = documents(folder, 1000, 5).root
    return shardprep.open(root, cache_dir=folder / "cache")


def order(loader):
    return [name for batch in loader for name in real(batch)]


@pytest.fixture(scope="module")
def orders(dataset):
    loader = dataset.loader(batch_size=8, seed=5)
    return [order(loader) for _ in range(3)]


def test_each_epoch_is_a_permutation_and_no_two_are_alike(orders):
    assert all(sorted(one) == sorted(once(1000)) for one in orders)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert orders[one] != orders[other]
        assert sum(a == b for a, b in zip(orders[one], orders[other], strict=True)) < 100


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("with_setter", [True, False])
def test_the_same_seed_gives_the_same_three_orders(dataset, orders, threads, with_setter):
    loader = dataset.loader(batch_size=8, seed=5, num_threads=threads)
    for epoch, wanted in enumerate(orders):
        if with_setter:
            loader.set_epoch(epoch)
        assert order(loader) == wanted


def test_a_setter_goes_to_any_epoch_and_again_to_the_same(dataset, orders):
    loader = dataset.loader(batch_size=8, seed=5)
    for epoch in (2, 0, 2, 1, 1):
        loader.set_epoch(epoch)
        assert order(loader) == orders[epoch]


def test_another_seed_is_another_order(dataset, orders):
    other = dataset.loader(batch_size=8, seed=6)
    assert order(other) not in orders


@pytest.mark.parametrize("threads", [1, 2])
def test_stopped_at_step_30_of_epoch_1_it_goes_on_there(dataset, orders, threads):
    loader = dataset.loader(batch_size=8, seed=5, num_threads=2)
    order(loader)
    before = []
    for batch in loader:
        before += real(batch)
        if batch.step == 29:  # 30 steps are finished
            break
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["epoch"], state["step"]) == (1, 30)
    again = dataset.loader(batch_size=8, seed=5, num_threads=threads)
    again.load_state_dict(state)
    assert before + order(again) == orders[1]
    assert order(again) == orders[2]


def test_the_setter_wins_over_a_state_that_was_loaded_before(dataset, orders):
    loader = dataset.loader(batch_size=8, seed=5)
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "step": 30})
    loader.set_epoch(2)
    assert order(loader) == orders[2]
