"""Train a small language model on shards, with PyTorch DDP: an example to start from.

    torchrun --nproc-per-node 2 pipelines/train_ddp.py SHARDS CHECKPOINTS --slots 6 --batch-tokens 4096

Kill it, and start it again with another number of processes: it goes on from the last checkpoint, with the same rounds,
each row once per epoch. --slots is the number of micro-batches of a round: take one that all worlds you plan divide.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import shardprep
from shardprep.reader.history import StateHistory
from shardprep.torch import TorchBatch, TorchLoader


class TinyLM(nn.Module):
    """Next-token prediction; put your model here."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return logits, float (rows, padded, vocabulary)."""
        return self.out(self.mix(self.embed(input_ids))[0])


def summed_loss(model: nn.Module, batch: TorchBatch) -> torch.Tensor:
    """Return the sum of the losses of all targets; padding and filler rows have the label -100 and count nothing."""
    logits = model(batch.input_ids)[:, :-1]
    return cross_entropy(logits.flatten(0, 1).float(), batch.labels[:, 1:].flatten(), reduction="sum")


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, loader: TorchLoader) -> None:
    """Save the reader's state, then the model under its final name: a model that is there has its state."""
    StateHistory(folder / "reader").save(step, loader.state_dict())
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "model.tmp")
    os.replace(folder / "model.tmp", folder / f"model-{step:08d}.pt")
    for old in sorted(folder.glob("model-*.pt"))[:-3]:
        old.unlink()


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: TorchLoader) -> int:
    """Continue from the newest checkpoint; return its step, 0 if there is none."""
    found = sorted(folder.glob("model-*.pt"))
    if not found:
        return 0
    step = int(found[-1].stem.removeprefix("model-"))
    history = StateHistory(folder / "reader")
    if step not in history.steps():  # an older state would train rows twice
        raise SystemExit(f"{found[-1]} is there, but {folder / 'reader'} holds no reader state of step {step}")
    state = history.load(step)
    assert state is not None
    saved = torch.load(found[-1], map_location="cpu")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(state)
    return step


@torch.no_grad()
def evaluate(model: nn.Module, loader: TorchLoader) -> float:
    """Return the mean loss of a split's targets: every row once over all ranks, filler rows not counted."""
    sums = torch.zeros(2, dtype=torch.float64, device=loader.device)
    for batch in loader:
        sums[0] += summed_loss(model, batch).double()
        sums[1] += (batch.labels[:, 1:] != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def train(arguments: argparse.Namespace) -> None:
    """Train as this rank, from the newest checkpoint on."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    data = shardprep.open(arguments.shards, cache_dir=arguments.cache_dir)
    sizes = {"batch_tokens": arguments.batch_tokens, "slots": arguments.slots}
    loader = TorchLoader(
        data.loader("train", accumulate=arguments.accumulate, seed=arguments.seed, **sizes),
        device=device,
        num_workers=arguments.workers,
        persistent_workers=arguments.workers > 0,
    )
    model = TinyLM(arguments.vocabulary or data.manifest.tokenizer["vocab_size"], arguments.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    folder = Path(arguments.checkpoints)
    folder.mkdir(parents=True, exist_ok=True)
    step = load(folder, model, optimizer, loader)
    parallel = DistributedDataParallel(model)
    log = open(folder / f"log-{step:08d}-{rank}.jsonl", "a", buffering=1)  # noqa: SIM115  until the end
    ids: list[str] = []
    total = torch.zeros((), dtype=torch.float64, device=device)  # where the process group can add it up
    while (epoch := loader.state_dict()["epoch"]) < arguments.epochs:
        for batch in loader:
            # Targets of the whole step, over all ranks and micro-batches; DDP takes the mean over ranks, so times their number.
            scale = world_size / max(1, batch.step_tokens - batch.step_rows)
            parallel.require_backward_grad_sync = batch.last_in_step
            loss = summed_loss(parallel, batch) * scale
            loss.backward()
            total += loss.detach().double() / world_size
            ids += batch.ids[: batch.real]
            if not batch.last_in_step:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            dist.all_reduce(total)
            print(
                json.dumps({"at": step, "epoch": epoch, "step": batch.step, "loss": total.item(), "ids": ids}), file=log
            )
            ids, total = [], torch.zeros_like(total)
            if rank == 0 and step % arguments.save_every == 0:
                save(folder, step, model, optimizer, loader)
        if "validation" in data.splits:
            model.eval()
            loss = evaluate(model, TorchLoader(data.loader("validation", shuffle=False, **sizes), device=device))
            model.train()
            if rank == 0:
                print(f"epoch {epoch}: validation loss {loss:.6f} after {step} steps", flush=True)
    if rank == 0:
        save(folder, step, model, optimizer, loader)
    loader.close()
    log.close()


def main() -> None:
    """Run one of the processes that torchrun starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", help="a data set: folder or URI")
    parser.add_argument("checkpoints", help="folder of model checkpoints and reader states")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=4096, help="padded tokens of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="rounds of a step")
    parser.add_argument(
        "--slots", type=int, default=None, help="micro-batches of a round; default: the number of processes"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="worker processes that read; 0: threads")
    parser.add_argument("--cache-dir", default=None, help="where this node keeps shards")
    parser.add_argument("--vocabulary", type=int, default=None, help="default: that of the data set's tokenizer")
    parser.add_argument("--width", type=int, default=64, help="of the model")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--save-every", type=int, default=100, help="steps between two checkpoints")
    arguments = parser.parse_args()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        train(arguments)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # Gloo's threads outlive destroy_process_group, and can abort a process whose Python ends (pytorch/pytorch issue 190489).
    os._exit(0)
