"""Does a small model learn as well from these batches as from uniformly shuffled ones of equal token count?

A causal language model (the last two tokens and the mean of all before them, 18,000 weights) on sequences that hidden topics
write, once with topics that have nothing to do with the length of a row, and once with topics that nearly follow from it: the
worst case for batches of one length. Each run trains some epochs with Adam, the rate falling to nothing, on batches of ours and
on uniformly shuffled rows cut into steps of as many tokens (8 micro-batches of 512); same initial weights, loss summed over
tokens and divided by the step's tokens in both. Reported is the loss on rows that were not trained on, per token, over seeds,
and the mean difference with its 95 % interval (paired by seed, Student's t).
"""

from __future__ import annotations

import json
import shutil
from functools import cache, partial
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from benchmarks.bench import parser, record, table
from benchmarks.reads import FOLDER

ROWS, VALID, VOCABULARY, TOPICS, BATCH_TOKENS, SLOTS = 8_000, 1_000, 64, 4, 512, 8
LEARNING_RATE = 5e-3
STUDENT_T = {
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
    11: 2.201,
    14: 2.145,
    19: 2.093,
}  # by freedom, 95 %


@cache
def sequences(link: float) -> list[np.ndarray]:
    """Return rows of tokens: a topic's own Markov chain. link: 0 topics by chance, 1 topics 0 to 3 by length."""
    rng = np.random.default_rng(11)
    chains = rng.dirichlet(np.full(VOCABULARY, 0.08), size=(TOPICS, VOCABULARY)).cumsum(axis=2)
    lengths = np.clip(rng.lognormal(np.log(60.0), 0.7, ROWS + VALID), 8, 512).astype(int)
    rank = np.argsort(np.argsort(lengths)) / len(lengths)
    topics = np.clip(np.floor(TOPICS * (link * rank + (1 - link) * rng.random(len(lengths)))), 0, TOPICS - 1).astype(
        int
    )
    state = rng.integers(0, VOCABULARY, len(lengths))
    out = np.zeros((len(lengths), 512), np.int32)
    for i in range(512):  # all rows at once, one token further
        out[:, i] = state
        rows = chains[topics, state]
        state = (rows < rng.random(len(lengths))[:, None]).sum(axis=1).clip(0, VOCABULARY - 1)
    return [row[:n] for row, n in zip(out, lengths, strict=True)]


class Sequences:
    """A tokenizer for texts that are numbers of rows."""

    fingerprint = "5e" * 32
    vocab_size = VOCABULARY
    pad_id = 0

    def __init__(self, link: float) -> None:
        self.link = link

    def encode_batch(self, texts):
        rows = sequences(self.link)
        parts = [rows[int(text)] for text in texts]
        return np.concatenate(parts), np.cumsum([0, *map(len, parts)]).astype(np.int64)


def data_set(link: float) -> Path:
    import shardprep

    folder = FOLDER / f"small-model-{link}"
    if not (folder / "manifest.json").exists():
        lines = folder.with_name(folder.name + ".lines")
        shutil.rmtree(lines, ignore_errors=True)
        lines.mkdir(parents=True)
        (lines / "all.jsonl").write_text(
            "".join(json.dumps({"id": str(i), "text": str(i)}) + "\n" for i in range(ROWS))
        )
        shardprep.build(
            lines,
            folder,
            tokenizer=Sequences(link),
            id_field="id",
            no_eos=True,
            shards=8,
            scheduler="serial",
            progress=False,
        )
    return folder


def loader_of(folder: Path, seed: int, policy: dict[str, int]):
    import shardprep

    return shardprep.open(str(folder), cache_dir=str(FOLDER / "cache-ours")).loader(
        "train", batch_tokens=BATCH_TOKENS, rank=0, world_size=1, seed=seed, **{"slots": SLOTS, **policy}
    )


def our_steps(loader, epoch: int):
    """Yield the steps of an epoch: lists of (ids, lengths of real rows)."""
    loader.set_epoch(epoch)
    step = []
    for batch in loader:
        if batch.real:
            step.append((batch.input_ids[: batch.real], batch.lengths[: batch.real]))
        if batch.last_in_step:
            yield step
            step = []


def uniform_steps(rows: list[np.ndarray], order: np.ndarray, tokens: int):
    """Yield steps of about so many tokens, in micro-batches of 16 rows."""
    step, count = [], 0
    for i in order:
        step.append(rows[i])
        count += len(rows[i])
        if count >= tokens:
            yield padded(step)
            step, count = [], 0
    if step:
        yield padded(step)


def padded(rows: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    out = []
    for a in range(0, len(rows), 16):
        part = rows[a : a + 16]
        lengths = np.array([len(r) for r in part])
        ids = np.zeros((len(part), lengths.max()), np.int64)
        for i, r in enumerate(part):
            ids[i, : len(r)] = r
        out.append((ids, lengths))
    return out


def model_of(seed: int):
    import torch
    from torch import nn

    class Small(nn.Module):
        def __init__(self, width: int = 32, hidden: int = 96) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, width)
            self.hidden, self.out = nn.Linear(3 * width, hidden), nn.Linear(hidden, VOCABULARY)

        def forward(self, ids):
            now = self.embed(ids)
            before = nn.functional.pad(now, (0, 0, 1, 0))[:, :-1]
            seen = now.cumsum(dim=1) / torch.arange(1, ids.shape[1] + 1)[None, :, None]  # what topic it is
            return self.out(nn.functional.gelu(self.hidden(torch.cat([now, before, seen], dim=2))))

    torch.manual_seed(seed)
    return Small()


def loss_of(model, ids: np.ndarray, lengths: np.ndarray):
    """Return the summed loss over predicted tokens, and their number."""
    import torch

    ids_ = torch.from_numpy(np.ascontiguousarray(ids))
    targets = ids_[:, 1:].clone()
    targets[torch.arange(1, ids_.shape[1])[None] >= torch.from_numpy(lengths)[:, None]] = -100
    logits = model(ids_[:, :-1])
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    return loss, int((lengths - 1).sum())


def trained(steps_of, seed: int, epochs: int, planned: int):
    """Return the model after some epochs of steps, about `planned` in all, and the number of steps."""
    import torch

    model, count = model_of(seed), 0
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for epoch in range(epochs):
        for step in steps_of(epoch):
            tokens = sum(int((lengths - 1).sum()) for _, lengths in step)
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(0.0, 1 - count / planned)
            optimizer.zero_grad()
            for ids, lengths in step:
                (loss_of(model, ids, lengths)[0] / tokens).backward()
            optimizer.step()
            count += 1
    return model, count


def validation_loss(model, rows: list[np.ndarray]) -> float:
    import torch

    with torch.no_grad():
        parts = [loss_of(model, ids, lengths) for ids, lengths in padded(sorted(rows, key=len))]
    return float(sum(loss for loss, _ in parts) / sum(n for _, n in parts))


CASES = (  # link, name, policy
    (0.0, "variety=0", {}),
    (0.7, "variety=0", {}),
    (0.7, "variety=2", {"variety": 2}),
    (0.7, "variety=0, 4 rounds a step", {"slots": SLOTS // 4, "accumulate": 4}),
)


def compared(link: float, seed: int, epochs: int) -> dict[str, float]:
    """Return the validation losses of all orders for one seed."""
    folder, rows, losses, steps = data_set(link), sequences(link), {}, 0
    for _, name, policy in [case for case in CASES if case[0] == link]:
        loader = loader_of(folder, seed, policy)
        model, count = trained(partial(our_steps, loader), seed, epochs, epochs * loader.steps)
        losses[f"ours, {name}"] = validation_loss(model, rows[ROWS:])
        steps = steps or count  # the first case decides how many tokens a uniform step has
    tokens, order = sum(map(len, rows[:ROWS])) * epochs // steps, np.random.default_rng(seed)
    model, count = trained(lambda _: uniform_steps(rows[:ROWS], order.permutation(ROWS), tokens), seed, epochs, steps)
    print(f"seed {seed}, link {link}: {steps} steps of ours, {count} of uniform", flush=True)
    return {"uniform": validation_loss(model, rows[ROWS:]), **losses}


def main(arguments: list[str]) -> None:
    import torch

    flags = parser(__doc__)
    flags.add_argument("--seeds", type=int, default=6)
    flags.add_argument("--epochs", type=int, default=4)
    options = flags.parse_args(arguments)
    torch.set_num_threads(1)  # two are slower at this size
    rows = []
    for link in (0.0, 0.7):
        seeds = [compared(link, seed, options.epochs) for seed in range(options.seeds)]
        for name in seeds[0]:
            losses = [losses[name] for losses in seeds]
            gaps = [losses[name] - losses["uniform"] for losses in seeds]
            half = STUDENT_T.get(len(gaps) - 1, 2.0) * stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")
            uniform = mean(losses["uniform"] for losses in seeds)
            record(
                "small_model", {"order": name, "link": link, "losses": losses, "gap": mean(gaps), "half_interval": half}
            )
            gap = "-" if name == "uniform" else f"{mean(gaps):+.4f} ± {half:.4f} ({mean(gaps) / uniform:+.2%})"
            spread = f"{stdev(losses):.4f}" if len(losses) > 1 else "-"
            rows.append(("by length" if link else "by chance", name, f"{mean(losses):.4f}", spread, gap))
    heads = (
        "topics",
        "batches",
        "validation loss, nats a token",
        "deviation over seeds",
        "from uniform, 95 % interval",
    )
    table(f"A small language model, {options.seeds} seeds, {options.epochs} epochs", heads, rows)
