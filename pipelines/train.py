"""Train or fine-tune a transformers model on shards: a classifier or a language model, whole or with LoRA, on one rank or many.

    python pipelines/train.py SHARDS --model FOLDER --task classification --labels 3 --checkpoints run --epochs 3
    torchrun --nproc-per-node 4 pipelines/train.py SHARDS --model config.json --task causal-lm --checkpoints run --slots 8

Kill it, and start it again with the same words, on as many ranks as there are then: it goes on from the last checkpoint. --slots
is the number of micro-batches of a round: give the largest number of ranks that you plan. In a SageMaker training job the
channels, hyperparameters and folders are found where the platform puts them.

Exit codes: 0 the training ended as asked: all steps, an early stop, or a limit of time or money; the model is in --output ·
143 or 130 SIGTERM or Ctrl-C, a checkpoint was saved, start again to go on · 1 it failed · 2 the call is wrong.
"""

# ruff: noqa: E402  the clock is read before the imports

from __future__ import annotations

import time

STARTED = time.monotonic()  # imports take seconds, and are billed

import argparse
import json
import math
import os
import shutil
import signal
import sys
import traceback
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm
from train_arguments import parse
from train_model import (
    MODES,
    PRECISIONS,
    evaluate,
    make_model,
    row_sums,
    save_model,
    targets_of_step,
    with_lora,
    write_rows,
)
from train_state import (
    Checkpoints,
    load_trained_state,
    random_state,
    restore_random_state,
    seed_everything,
    trained_state,
)

import shardprep
from shardprep.adapters.sagemaker import GracefulStop, TrainingEnvironment, training_environment
from shardprep.adapters.sagemaker.stopping import SaveEvery, any_rank
from shardprep.budget import BudgetGuard
from shardprep.errors import ConfigError, ShardprepError, StoreError
from shardprep.reader.whole_file import write_whole
from shardprep.stopping import EarlyStopping
from shardprep.torch import TorchBatch, TorchLoader

# What a resumed run must have in common with the one before; sizes of batches and the seed are checked by the reader's state.
FIXED = (
    "task", "label", "lr", "weight_decay", "schedule", "warmup_steps", "clip", "lora_rank", "lora_alpha", "lora_targets",
)  # fmt: skip


class Training:
    """A run of training, from a fresh model or from the last checkpoint on, as one rank of all."""

    def __init__(self, chosen: argparse.Namespace, stop: GracefulStop) -> None:
        self.chosen, self.stop = chosen, stop
        on = dist.is_initialized()
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if on else (0, 1)
        self.device = _device()
        self.precision = _precision(chosen.precision, self.device)
        self.folder = Path(chosen.checkpoints)
        self.checkpoints = Checkpoints(self.folder, chosen.keep)
        data = shardprep.open(chosen.shards, cache_dir=chosen.cache_dir)
        sizes = {"batch_tokens": chosen.batch_tokens, "batch_size": chosen.batch_size, "slots": chosen.slots}
        train = data.loader(chosen.split, accumulate=chosen.accumulate, seed=chosen.seed, **sizes)
        self.loader = TorchLoader(
            train, device=self.device, num_workers=chosen.workers, persistent_workers=chosen.workers > 0
        )
        self.held_out = None
        if data.splits.get(chosen.validation):  # a split may be there and have no rows
            self.held_out = TorchLoader(data.loader(chosen.validation, shuffle=False, **sizes), device=self.device)
        self.stopper = EarlyStopping(
            chosen.metric, MODES[chosen.metric], chosen.patience or sys.maxsize, chosen.min_delta,
            chosen.warmup_steps if chosen.min_steps is None else chosen.min_steps,
            splits=data if chosen.patience or self.held_out else [chosen.validation], split=chosen.validation,
            curve=self.folder / "curve.jsonl" if self.rank == 0 else None,
        )  # fmt: skip
        self._make_model(data)
        self._open_accounts()
        self.step, self.evaluated_at, self.saved_at = 0, -1, -1
        self.not_finite = torch.zeros((), dtype=torch.bool, device=self.device)
        self._resume()
        self.writer = _tensorboard(chosen.tensorboard, self.step) if chosen.tensorboard and self.rank == 0 else None

    def _open_accounts(self) -> None:
        """Begin to count money and time: of all runs in the guard, of this run alone for --max-runtime."""
        chosen, hours = self.chosen, (self.chosen.max_runtime or math.inf) / 3600
        began = (time.monotonic() - STARTED) / 60
        self.guard = BudgetGuard(
            chosen.max_usd, chosen.max_hours, chosen.price_per_hour, self.folder, chosen.instances,
            chosen.startup_minutes_billed + began, rank=self.rank,
        )  # fmt: skip
        limit = hours if math.isfinite(hours) else None
        self.runtime = BudgetGuard(max_hours=limit, startup_minutes_billed=began, rank=self.rank)
        self.save_clock = SaveEvery(chosen.save_every_s)

    def _make_model(self, data: Any) -> None:
        chosen, lora = self.chosen, self.chosen.lora_rank > 0
        # A base that stays as it is may be as short as it is multiplied; weights that are trained may not.
        weights = self.precision if lora and self.precision is torch.bfloat16 else torch.float32
        model = make_model(
            chosen.model, chosen.task, data.manifest, labels=chosen.labels, precision=weights, seed=chosen.seed
        )
        if chosen.gradient_checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
            model.enable_input_require_grads()
        if lora:
            model = with_lora(
                model, chosen.task, rank=chosen.lora_rank, alpha=chosen.lora_alpha, dropout=chosen.lora_dropout,
                targets=chosen.lora_targets,
            )  # fmt: skip
        self.model = model.to(self.device).train()
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in self.trained if p.ndim > 1], "weight_decay": chosen.weight_decay},
            {"params": [p for p in self.trained if p.ndim <= 1], "weight_decay": 0.0},  # biases and norms
        ]
        self.optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=chosen.lr)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision is torch.float16)
        self.cast = torch.autocast(self.device.type, self.precision, enabled=self.precision is not torch.float32)
        self.parallel = DistributedDataParallel(self.model) if self.world > 1 else self.model

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Take up the newest checkpoint: rank 0 reads it and sends it to all, so that all begin from one, whatever they see."""
        found: Any = None
        if self.rank == 0:
            try:
                found = self.checkpoints.newest()
            except ShardprepError as error:
                found = error
        state = _of_rank_0(found)
        if isinstance(state, ShardprepError):
            raise state
        if state is not None:
            self._check(state["arguments"])
            self.loader.load_state_dict(state["loader"])  # before len: it knows the slots of a round
        # Exact, before anything is read: the schedule knows where it ends.
        self.total = self.chosen.max_steps or self.chosen.epochs * self.loader.steps
        self.evaluate_every = self.chosen.evaluate_every or self.loader.steps
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        seed_everything(self.chosen.seed, self.rank, 0 if state is None else state["step"])
        if state is None:
            return
        self.step, self.saved_at, self.evaluated_at = state["step"], state["step"], state["evaluated_at"]
        load_trained_state(self.model, state["model"])
        for name in ("optimizer", "scheduler", "scaler", "guard"):
            getattr(self, name).load_state_dict(state[name])
        self.stopper.load_state_dict(state["stopper"], new_settings=True)
        if len(state["random"]) == self.world:  # else dropout draws anew, from seed, rank and step
            restore_random_state(state["random"][self.rank])

    def save(self) -> None:
        """Save all that the run needs to go on, in one file; all ranks call it together."""
        if any_rank(bool(self.not_finite))[0]:
            raise ShardprepError(
                f"the loss was not a number at step {self.step:,} or shortly before it: a label that is not in 0 ... --labels - 1, "
                f"or a learning rate that is too high. Nothing was saved; the last checkpoint is of step {max(0, self.saved_at):,}"
            )
        states: list[Any] = [random_state()]
        if self.world > 1:
            states = [None] * self.world
            dist.all_gather_object(states, random_state())
        failed: ShardprepError | None = None
        with self.guard.saving(), self.runtime.saving():
            if self.rank == 0:
                state = {
                    "version": 1, "step": self.step, "evaluated_at": self.evaluated_at, "arguments": self._arguments(),
                    "model": trained_state(self.model), "optimizer": self.optimizer.state_dict(),
                    "scheduler": self.scheduler.state_dict(), "scaler": self.scaler.state_dict(), "random": states,
                    "loader": self.loader.state_dict(), "guard": self.guard.state_dict(), "stopper": self.stopper.state_dict(),
                }  # fmt: skip
                try:
                    self.checkpoints.save(self.step, state, self.stopper.best_step)
                except ShardprepError as error:
                    failed = error
            # All wait here: a rank that left would take the job down while rank 0 writes.
            if any_rank(failed is not None)[0]:
                raise _of_rank_0(failed) or StoreError("the checkpoint could not be written")
        self.saved_at = self.step
        self.save_clock.restart()
        self.log("saved")

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self.chosen, name) for name in (*FIXED, "epochs", "max_steps", "precision")}

    def _check(self, then: dict[str, Any]) -> None:
        changed = {name: (then[name], now) for name, now in self._arguments().items() if then[name] != now}
        said = [f"--{name.replace('_', '-')} was {old}, now {new}" for name, (old, new) in changed.items()]
        if changed.keys() & set(FIXED):
            raise ConfigError(
                f"{self.folder} holds checkpoints of another training: {'; '.join(said)}. Give the same, or another --checkpoints"
            )
        if said:
            self.say(f"note: since the checkpoint {'; '.join(said)}")

    def _rate(self, step: int) -> float:
        """Return the learning rate of a step as a share of --lr: up in a line, then down to 0 at the very last step."""
        chosen = self.chosen
        if step < chosen.warmup_steps:
            return (step + 1) / chosen.warmup_steps
        done = (step - chosen.warmup_steps) / max(1, self.total - chosen.warmup_steps)
        falling = {
            "cosine": (1 + math.cos(math.pi * min(1.0, done))) / 2,
            "linear": max(0.0, 1 - done),
            "constant": 1.0,
        }
        return falling[chosen.schedule]

    # ---- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Train to the end; return why it ended: finished, stopped early, budget, max runtime, or interrupted."""
        where = f"{'going on from' if self.step else 'starting at'} step {self.step:,} of {self.total:,}"
        sizes = [sum(p.numel() for p in parameters) for parameters in (self.trained, self.model.parameters())]
        self.say(
            f"{where} ({self.loader.steps:,} an epoch): {self.world} rank{'s' * (self.world > 1)} on {self.device.type}, "
            f"{_name(self.precision)}, {sizes[0]:,} of {sizes[1]:,} parameters trained"
            + (f"; {self.spent()}" if self.guard.earlier_runs else "")
        )
        self.log("started", total=self.total, world_size=self.world, steps_per_epoch=self.loader.steps)
        ending = self._after_step()  # of the last step of the run before; all money may be spent
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with tqdm(
            total=self.total, initial=self.step, unit="step", disable=self.rank > 0 or not sys.stderr.isatty()
        ) as bar:
            while not ending:
                for batch in self.loader:
                    total += self._backward(batch)
                    if not batch.last_in_step:
                        continue
                    norm = self._update()
                    bar.update()
                    if self.step % self.chosen.log_every == 0 or self._evaluation_due() or self.step == self.total:
                        self._report(total, norm, batch.step_tokens, bar)
                    self.not_finite |= ~total.isfinite()
                    if not self.scaler.is_enabled():  # with it, such a step was left out
                        self.not_finite |= ~norm.isfinite()  # the weights are spoilt, and the next loss would tell
                    total = torch.zeros_like(total)
                    ending = self._after_step()
                    if ending:
                        break
        return ending

    def _backward(self, batch: TorchBatch) -> torch.Tensor:
        """Add the gradients of a micro-batch; return its share of the step's loss.

        The losses of all targets are added up and divided by the targets of the whole step, so how a step is cut into
        micro-batches and ranks changes nothing. DDP takes the mean over ranks, so times their number.
        """
        together = batch.last_in_step or self.world == 1  # gradients cross the network once a step
        with nullcontext() if together else self.parallel.no_sync():
            with self.cast:
                losses = row_sums(self.parallel, batch, self.chosen.task, self.chosen.label).loss
            loss = losses.sum() / targets_of_step(batch, self.chosen.task)
            self.scaler.scale(loss * self.world).backward()
        return loss.detach().double()

    def _update(self) -> torch.Tensor:
        """Make an optimizer step with the gradients, which are the same on all ranks; return their norm before clipping."""
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self.chosen.clip or math.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.step += 1
        return norm

    def _after_step(self) -> str:
        """Evaluate and save where it is time to; return why the run ends here, or an empty string."""
        wishes = (self.stop.requested, self.guard.step(self.step), self.runtime.step(self.step), self.save_clock.due())
        stop, spent, late, save = any_rank(*wishes)
        ending = "interrupted" if stop else "budget" if spent else "max runtime" if late else ""
        evaluated = False
        if not ending and self._evaluation_due() and self.evaluated_at < self.step:
            ending, evaluated = self._evaluate()
        if self.stopper.stopped and ending in ("", "finished"):
            ending = "stopped early"
        if not ending and self.step >= self.total:
            ending = "finished"
        if evaluated or save or (ending and self.step != self.saved_at):
            self.save()
        return ending

    def _evaluation_due(self) -> bool:
        at_start = self.step == 0 and self.chosen.evaluate_at_start
        due = self.step > 0 and (self.step % self.evaluate_every == 0 or self.step >= self.total)
        return self.held_out is not None and (due or at_start)

    def _evaluate(self) -> tuple[str, bool]:
        """Evaluate; return why the run ends, or an empty string, and whether it was done: a stop in the middle leaves it out."""
        chosen, began = self.chosen, time.monotonic()
        result = evaluate(
            self.model, self.held_out, chosen.task, chosen.label, cast=self.cast, must_stop=self._asked_to_stop
        )
        if result is None:
            asked, spent = any_rank(self.stop.requested, self.guard.must_stop(self.step))
            return "interrupted" if asked else "budget" if spent else "max runtime", False
        value = getattr(result, self.chosen.metric)
        decision = self.stopper.update(value, self.step)
        self.evaluated_at = self.step
        cost = self.guard.evaluated(self.chosen.metric, value, self.step, mode=MODES[self.chosen.metric])
        numbers = {"loss": result.loss, "accuracy": result.accuracy}
        self.log(
            "evaluated", **numbers, targets=result.targets, seconds=time.monotonic() - began, best=decision.is_best
        )
        self.chart({f"{self.chosen.validation}/{name}": number for name, number in numbers.items()})
        if self.rank == 0:
            write_rows(self.rows_path(self.step), result.rows, chosen.task)
        spent = f", {self.guard.spent_usd:.4f} USD" if self.chosen.price_per_hour else ""
        gain = (
            f", {cost:.3g} USD for each unit of {self.chosen.metric} gained"
            if spent and cost and math.isfinite(cost)
            else ""
        )
        self.say(
            f"step {self.step:,} of {self.total:,} (epoch {self.step / self.loader.steps:.2f}): {self.chosen.validation} loss "
            f"{result.loss:.4f}, accuracy {result.accuracy:.4f}{' (best so far)' if decision.is_best else ''}; {self.spent()}{gain}"
        )
        if decision.stop:
            self.say(decision.reason)
        return ("stopped early" if decision.stop else ""), True

    def _asked_to_stop(self) -> bool:
        return any(any_rank(self.stop.requested, self.guard.must_stop(self.step), self.runtime.must_stop(self.step)))

    def _report(self, total: torch.Tensor, norm: torch.Tensor, tokens: int, bar: Any) -> None:
        """Say how the last step went, to the progress bar and TensorBoard."""
        if self.world > 1:
            total = total.clone()
            dist.all_reduce(total)
        bar.set_postfix(loss=f"{total.item():.4f}", refresh=False)
        rate = self.scheduler.get_last_lr()[0]
        self.chart(
            {"train/loss": total.item(), "train/norm": norm.item(), "train/lr": rate, "train/step_tokens": tokens}
        )

    # ---- the end ---------------------------------------------------------------------------------------------------

    def finish(self, ending: str) -> None:
        """Close the accounts; if the run did not break off, put the best model (or the last, if none was evaluated) in --output."""
        best = self.stopper.best_step
        if ending != "interrupted" and self.rank == 0:
            output = Path(self.chosen.output or self.folder / "model")
            if best not in (None, self.step):
                load_trained_state(self.model, self.checkpoints.load(best)["model"])
            try:
                save_model(self.model, output, merge=self.chosen.merge_lora or self.chosen.model.endswith(".json"))
                if best is not None:
                    shutil.copyfile(self.rows_path(best), output / "rows.jsonl")
            except (OSError, SafetensorError) as error:
                raise StoreError(
                    f"{output}: the model could not be written ({error}). Training is done, its checkpoint saved: make room, or "
                    "name another --output, and start again"
                ) from error
        self.guard.close()
        about = {
            "ending": ending,
            "step": self.step,
            "total": self.total,
            "best_step": best,
            "best": self.stopper.best_value,
        }
        spent = {"metric": self.chosen.metric, "spent_usd": self.guard.spent_usd, "spent_hours": self.guard.spent_hours}
        self.log("ended", **about, **spent, metrics=self.loader.metrics())
        if self.rank == 0:
            write_whole(str(self.folder / "status.json"), (json.dumps(about | spent) + "\n").encode(), durable=True)
        left = "" if ending == "finished" else f" at step {self.step:,} of {self.total:,}"
        late = f"{self.runtime.spent_hours * 3600:.0f} of --max-runtime {self.chosen.max_runtime or 0:g} s are over"
        why = {"budget": f" ({self.guard.reason})", "max runtime": f" ({late})"}.get(ending, "")
        kept = "" if best is None else f"; best {self.chosen.metric} {self.stopper.best_value:.4f} at step {best:,}"
        again = ". A checkpoint is saved: start again to go on" if ending == "interrupted" else ""
        self.say(f"{ending}{left}{why}{kept}; {self.spent()}{again}")
        if self.writer is not None:
            self.writer.close()
        self.loader.close()

    def spent(self) -> str:
        """Return what all runs took so far, for a person."""
        hours = (
            f"{self.guard.spent_hours:.3f} h"
            if self.guard.spent_hours >= 1
            else f"{self.guard.spent_hours * 60:.2f} min"
        )
        usd = f"{self.guard.spent_usd:.4f} USD, " if self.chosen.price_per_hour else ""
        return usd + hours + (f" in {self.guard.earlier_runs + 1} runs" if self.guard.earlier_runs else "")

    def rows_path(self, step: int) -> Path:
        """Return where the rows of an evaluation are, for `shardprep compare`."""
        return self.folder / "rows" / f"step-{step:09d}.jsonl"

    def say(self, line: str) -> None:
        """Print a line, on rank 0, past the progress bar."""
        if self.rank == 0:
            tqdm.write(line)
            sys.stdout.flush()

    def log(self, event: str, **values: Any) -> None:
        """Append a line to log.jsonl, on rank 0: what happened in all runs, for programs."""
        if self.rank == 0:
            line = {
                "event": event,
                "time": time.time(),
                "run_s": time.monotonic() - STARTED,
                "step": self.step,
                **values,
            }
            with open(self.folder / "log.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def chart(self, numbers: dict[str, float]) -> None:
        """Give numbers of this step to TensorBoard."""
        if self.writer is not None:
            for name, number in numbers.items():
                self.writer.add_scalar(name, number, self.step)


def _tensorboard(folder: str, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("--tensorboard needs tensorboard: pip install tensorboard") from error
    return SummaryWriter(folder, purge_step=step + 1)  # what was charted after the checkpoint is done again


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _precision(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if name == "fp16" and device.type == "cpu":
        raise ConfigError("--precision fp16 needs a GPU; bf16 and fp32 work without one")
    return PRECISIONS[name]


def _of_rank_0(thing: Any) -> Any:
    """Return what rank 0 gives here; all ranks call it together."""
    if not dist.is_initialized():
        return thing
    things = [thing]
    dist.broadcast_object_list(things, src=0)
    return things[0]


def _name(precision: torch.dtype) -> str:
    return next(name for name, one in PRECISIONS.items() if one is precision)


def main(words: list[str] | None = None) -> int:
    """Train; return the exit code."""
    job = None
    with ExitStack() as stack:
        try:
            job = training_environment()
            chosen = parse(sys.argv[1:] if words is None else words, str(__doc__), job)
            stop = stack.enter_context(GracefulStop())  # first: a signal while the model loads counts, too
            if "WORLD_SIZE" in os.environ:
                if torch.cuda.is_available():
                    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
                dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
                stack.callback(dist.destroy_process_group)
            elif torch.cuda.device_count() > 1:
                print(
                    f"note: {torch.cuda.device_count()} GPUs are here, and one is used; start with torchrun --nproc-per-node gpu"
                )
            if chosen.deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
                torch.use_deterministic_algorithms(mode=True)
            Path(chosen.checkpoints).mkdir(parents=True, exist_ok=True)
            training = Training(chosen, stop)
            ending = training.run()
            training.finish(ending)
            return 0 if ending != "interrupted" else 128 + (stop.signal or signal.SIGTERM)
        except Exception as error:  # noqa: BLE001  said here: once this rank has left the others, torchrun ends it
            return _failed(error, job)


def _failed(error: Exception, job: TrainingEnvironment | None) -> int:
    """Say what went wrong, to the platform too; return the exit code."""
    if isinstance(error, ShardprepError | OSError):
        print(f"train.py: rank {os.environ.get('RANK', '0')}: {error}", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)
    if job is not None:
        with suppress(OSError):  # becomes the job's FailureReason
            Path(job.failure_file).write_text(str(error)[:1024], encoding="utf-8")
    return error.exit_code if isinstance(error, ShardprepError) else 1


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # whoever read it is gone
            stream.flush()
    # All is saved and closed. Gloo's threads outlive destroy_process_group, and can abort a process whose Python ends
    # (pytorch/pytorch issue 190489).
    os._exit(code)
