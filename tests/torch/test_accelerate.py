"""Accelerate: prepare the model and the optimizer, and leave the loader alone."""

from __future__ import annotations

import torch
from accelerate import Accelerator

from pipelines.train_ddp import TinyLM, summed_loss
from shardprep.torch import TorchLoader
from tests.torch.played import ids_of


def test_a_step_of_several_micro_batches(dataset):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = TinyLM(701, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = accelerator.prepare(model, optimizer)  # not the loader
    loader = TorchLoader(dataset.loader(batch_tokens=1_500, accumulate=4), device=accelerator.device)
    assert loader.loader.plan.world.world_size == accelerator.num_processes
    losses, rows, updates = [0.0], [], 0
    for batch in loader:
        with accelerator.no_sync(model) if not batch.last_in_step else torch.enable_grad():
            scale = accelerator.num_processes / (batch.step_tokens - batch.step_rows)
            loss = summed_loss(model, batch) * scale
            accelerator.backward(loss)  # gradient_accumulation_steps is left at 1: nothing is divided
        losses[-1] += loss.item()
        rows += ids_of([batch])
        if batch.last_in_step:
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            losses.append(0.0)
    assert updates == loader.steps
    assert len(rows) == len(set(rows)) == dataset.splits["train"]
    assert min(losses[:-1]) > 0
