"""From S3: worker processes of every kind read through stores of their own, and not through the parent's."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

import shardprep
from shardprep.torch import ShardIterable, TorchLoader
from tests.reader.data import NumberTokens, lengths_of
from tests.torch.played import played

POLICY = {"batch_tokens": 2_000, "seed": 3}


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_forked_workers_after_the_parent_has_used_its_store(s3_env, s3_root, tmp_path):
    lengths = lengths_of(400)
    lines = (f'{{"id": {i}, "text": "{i} {length}"}}\n' for i, length in enumerate(lengths))
    (tmp_path / "in.jsonl").write_text("".join(lines))
    shardprep.build(
        tmp_path / "in.jsonl", s3_root, tokenizer=NumberTokens(), id_field="id", scheduler="serial", shards=4, no_eos=True,
        progress=False,
    )  # fmt: skip

    def loader(name):
        return shardprep.open(s3_root, cache_dir=tmp_path / name).loader(**POLICY)

    plain = TorchLoader(loader("plain"))
    orders = [played(plain) for _ in range(2)]  # the store of this process, with its threads and connections
    forked = DataLoader(ShardIterable(loader("forked")), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert [played(forked) for _ in range(2)] == orders
    with TorchLoader(loader("ours"), num_workers=2, persistent_workers=True) as ours:
        assert [played(ours) for _ in range(2)] == orders
    assert played(TorchLoader(loader("plain"))) == orders[0]
