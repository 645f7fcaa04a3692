"""The arithmetic of a step: its gradient does not hang on how it is dealt to ranks; an evaluation is the plain one."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import shardprep
from shardprep.torch import TorchLoader
from tests.training.conftest import WORDS

TASKS = ("classification", "causal-lm")


@pytest.fixture(scope="module")
def dataset(shards, tmp_path_factory):
    return shardprep.open(shards, cache_dir=tmp_path_factory.mktemp("cache"))


def model_of(models, dataset, task):
    from train_model import make_model

    model = make_model(models[task], task, dataset.manifest, labels=3, precision=torch.float64, seed=1)
    return model.double().eval()


def gradients(model, dataset, task, *, world: int, accumulate: int) -> tuple[list[torch.Tensor], int]:
    """Return the gradient of each step, all ranks' micro-batches played one after the other, and the filler rows seen."""
    from train_model import row_sums, targets_of_step

    ranks = [
        TorchLoader(
            dataset.loader(batch_tokens=150, slots=4, accumulate=accumulate, seed=2, rank=rank, world_size=world)
        )
        for rank in range(world)
    ]
    found, fillers = [], 0
    for batches in zip(*ranks, strict=True):
        for batch in batches:
            # As train.py does: times the ranks, and DDP takes the mean over them.
            loss = row_sums(model, batch, task, "label").loss.sum() / targets_of_step(batch, task) * world
            (loss / world).backward()
            fillers += len(batch.ids) - batch.real
        if batches[0].last_in_step:
            found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
            model.zero_grad()
    return found, fillers


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("task", TASKS)
def test_with_4_slots_every_step_has_the_same_gradient_on_1_to_4_ranks(models, dataset, task, accumulate):
    model = model_of(models, dataset, task)
    whole, fillers = gradients(model, dataset, task, world=1, accumulate=accumulate)
    assert len(whole) >= 4
    assert fillers > 0
    for world in (2, 3, 4):
        found, more = gradients(model, dataset, task, world=world, accumulate=accumulate)
        assert len(found) == len(whole)
        assert (more > fillers) == (world == 3)  # 4 slots on 3 ranks: some play filler only
        for step, (one, other) in enumerate(zip(found, whole, strict=True)):
            torch.testing.assert_close(
                one, other, rtol=1e-9, atol=1e-12, msg=lambda text, at=step: f"step {at}: {text}"
            )


@pytest.mark.parametrize("task", TASKS)
def test_the_gradient_is_that_of_the_mean_over_all_targets_of_the_step(models, dataset, task):
    model = model_of(models, dataset, task)
    found, _ = gradients(model, dataset, task, world=1, accumulate=3)
    rows = {}
    for batch in TorchLoader(dataset.loader(batch_size=1, shuffle=False)):
        rows[batch.ids[0]] = (batch.input_ids[:, : batch.lengths[0]], batch.columns["label"])
    for batch in TorchLoader(dataset.loader(batch_tokens=150, slots=4, accumulate=3, seed=2)):
        if batch.step:
            break
        for name in batch.ids[: batch.real]:
            loss, count = plain(model, task, *rows[name])
            (loss * count).backward()
    total = batch_targets(dataset, task)
    plain_gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]) / total
    torch.testing.assert_close(found[0], plain_gradient, rtol=1e-4, atol=1e-8)  # Llama's norms are float32 inside


def batch_targets(dataset, task: str) -> int:
    batch = next(iter(TorchLoader(dataset.loader(batch_tokens=150, slots=4, accumulate=3, seed=2))))
    return batch.step_rows if task == "classification" else batch.step_tokens - batch.step_rows


def plain(model, task: str, ids: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the mean loss of one row without padding, and how many targets it has."""
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.double()
    if task == "classification":
        return cross_entropy(logits, label), 1
    return cross_entropy(logits[0, :-1], ids[0, 1:]), ids.shape[1] - 1


@pytest.mark.parametrize("task", TASKS)
def test_an_evaluation_is_the_plain_one_row_by_row(models, dataset, task, tmp_path):
    from contextlib import nullcontext

    from train_model import evaluate, write_rows

    from shardprep.report.compare_reading import read_results

    model = model_of(models, dataset, task)
    expected, total = {}, 0
    for batch in TorchLoader(dataset.loader("validation", batch_size=1, shuffle=False)):
        ids = batch.input_ids[:, : batch.lengths[0]]
        loss, count = plain(model, task, ids, batch.columns["label"])
        expected[batch.ids[0]] = (loss.item(), count)
        total += count
    asked = []
    loader = TorchLoader(dataset.loader("validation", batch_tokens=150, slots=4, shuffle=False))
    result = evaluate(model, loader, task, "label", cast=nullcontext(), must_stop=lambda: asked.append(1) or False)
    assert model.training
    assert result.targets == total
    assert result.loss == pytest.approx(sum(loss * count for loss, count in expected.values()) / total, rel=1e-6)
    write_rows(tmp_path / "rows.jsonl", result.rows, task)
    read = read_results(str(tmp_path / "rows.jsonl"))
    assert read.columns["id"] == sorted(expected)
    assert read.columns["loss"] == pytest.approx([expected[name][0] for name in sorted(expected)], rel=1e-6)
    assert evaluate(model, loader, task, "label", cast=nullcontext(), must_stop=lambda: True) is None
    assert asked
    assert model.config.vocab_size == WORDS
