"""`make train-demo`: from the sample's documents to a trained model, a bill, and a word on whether the plan held.

Builds shards of the sample, measures a pilot on one rank, reckons the plan, trains a small BERT, kills it on the way (kill -9),
measures a pilot on two ranks where there are two cores, goes on with two, stops early, and holds the bill against the plan. Exit
code 1 where the plan did not hold. A projection is compared with what it is about: a pilot is the same training on the same
ranks, evaluations and checkpoints as often, right before the run. Everything happens on this computer and is left in the
folder; the price is that of an ml.g5.xlarge, as if this computer were one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shardprep
from shardprep.budget_log import read_log

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PRICE, EPOCHS, BUDGET_USD = 1.41, 40, 0.20  # USD an hour: ml.g5.xlarge, prices of 2026-10-16
PILOT_STEPS = 320  # eight epochs, with their evaluations
MOST_OFF, MOST_WAIT = 0.15, 0.01  # of the projection, of data waits
BUSY = 0.10  # of all cores, taken by others: rates of a minute ago say little then
MOST_UNCOUNTED, MOST_AT_ENDS_S = 0.05, 1.5  # of the account; and of each run, in seconds: no program counts its own end
TRAINING = [
    "--model", "pipelines/models/tiny-bert.json", "--task", "classification", "--labels", "3", "--lr", "3e-3", "--schedule",
    "constant", "--warmup-steps", "20", "--batch-tokens", "1024", "--slots", "2", "--evaluate-at-start",
]  # fmt: skip
STOPPING = ["--epochs", str(EPOCHS), "--patience", "3", "--min-delta", "0.0005"]
WAIT_S = 900.0


@dataclass(frozen=True)
class Rates:
    """What the pilot measured for so many ranks, in seconds."""

    ranks: int
    launch: float  # until the program itself begins to count
    startup: float  # until it is ready to train, the launch included
    evaluation: float  # the one before the first step, with its checkpoint
    step: float  # mean, with the evaluation and the checkpoint after each epoch in it
    others: float  # share of all cores that other programs took meanwhile


@dataclass(frozen=True)
class Run:
    """A run of the training: steps, evaluations, and seconds by this program's clock."""

    rates: Rates
    began_at: int
    ended_at: int
    evaluations: int
    seconds: float
    others: float  # share of all cores that other programs took meanwhile

    @property
    def projected(self) -> float:
        """Return what the pilot says that this takes."""
        before = self.rates.evaluation if self.began_at == 0 else 0.0
        return self.rates.startup + before + (self.ended_at - self.began_at) * self.rates.step


class Demo:
    """The story, in a folder."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder, self.ranks = folder, ranks
        self.shards, self.run, self.metrics = folder / "shards", folder / "run", folder / "metrics"
        # One thread a process: ranks do not fight for cores, and a busy computer does not make threads wait for each other.
        self.environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1",
            "SHARDPREP_CACHE_DIR": str(folder / "cache"),
        }  # fmt: skip
        self.environment.pop("SHARDPREP_METRICS_DIR", None)

    # ---- its parts -------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Build the data set."""
        _title("1. Shards: the sample's documents, cut to 48 tokens")
        self._shardprep(
            "build",
            "sample/documents",
            self.shards,
            "--tokenizer",
            "sample/tokenizer.json",
            "--config",
            "pipelines/demo.toml",
        )

    def pilot(self, ranks: int) -> Rates:
        """Measure some steps."""
        folder, out = self.folder / f"pilot-{ranks}", self.folder / f"pilot-{ranks}.json"
        words = [*self._program(ranks), *TRAINING, "--checkpoints", str(folder), "--epochs", "10000"]
        compared = [] if ranks == 1 else ["--compare", str(self.folder / "pilot-1.json")]
        began, load = time.time(), Load()
        self._shardprep(
            "pilot", "--steps", PILOT_STEPS, "--out", out, "--html", out.with_suffix(".html"), "--price-per-hour", PRICE,
            "--total-steps", EPOCHS * self._steps_per_epoch, *compared, "--", *words, quiet_errors=True,
        )  # fmt: skip
        started, saved = (_event(folder, name) for name in ("started", "saved"))
        return Rates(
            ranks=ranks,
            launch=started["time"] - started["run_s"] - began,
            startup=started["time"] - began,
            evaluation=saved["time"] - started["time"],
            step=json.loads(out.read_text())["seconds_per_step"]["mean"],
            others=load.others(),
        )

    def plan(self, rates: Rates) -> None:
        """Say what the whole run costs."""
        _title("3. The plan: all passes on one rank, at the price of an ml.g5.xlarge")
        rows = self._rows["validation"]
        plan = self.folder / "plan.toml"
        plan.write_text(
            textwrap.dedent(f"""\
            title = "The demo: {EPOCHS} passes over the sample, as if this computer were an ml.g5.xlarge"
            data = "shards"
            passes = {EPOCHS}
            instance = "ml.g5.xlarge"
            startup_billed_minutes = {rates.startup / 60:.4f}
            relaunches = 1            # somebody will kill it
            budget_usd = {BUDGET_USD}
            deadline_hours = 0.5

            [rates]
            pilot = "pilot-1.json"    # its steps have the evaluation and the checkpoint after each pass in them
            evaluation_seconds_per_row = {rates.evaluation / rows:.6f}

            [evaluation]
            rows_before = {rows}
            """)
        )
        self._shardprep("cost", plan, "--html", self.folder / "plan.html")

    def train(self, rates: Rates, *, kill_at: int | None = None) -> Run:
        """Train; with kill_at: until that step, and then kill -9."""
        words = [
            *self._program(rates.ranks), *TRAINING, *STOPPING, "--min-steps", str(self._half), "--checkpoints", str(self.run),
            "--price-per-hour", str(PRICE), "--max-usd", str(BUDGET_USD), "--startup-minutes-billed", f"{rates.launch / 60:.4f}",
        ]  # fmt: skip
        _say(words)
        environment = {**self.environment, "SHARDPREP_METRICS_DIR": str(self.metrics / str(rates.ranks))}
        began, load, before = time.monotonic(), Load(), len(list(_events(self.run)))
        with subprocess.Popen(words, env=environment, cwd=ROOT, start_new_session=True) as running:  # noqa: S603  built above
            if kill_at is not None:
                while self._step() < kill_at and running.poll() is None and time.monotonic() - began < WAIT_S:
                    time.sleep(0.01)
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGKILL)  # the group that was started here, and nothing else
            code = running.wait(WAIT_S)
        seconds = time.monotonic() - began
        if kill_at is not None:
            print(f"    kill -9 after step {self._step()}: exit code {code}", flush=True)
        elif code:
            raise SystemExit(f"train-demo: the training ended with exit code {code}")
        events = list(_events(self.run))[before:]
        started = next(event for event in events if event["event"] == "started")
        evaluations = sum(event["event"] == "evaluated" for event in events)
        return Run(rates, started["step"], self._step(), evaluations, seconds, load.others())

    # ---- the report ------------------------------------------------------------------------------------------------

    def bill(self, runs: Sequence[Run], status: dict[str, Any]) -> None:
        """Print what each run took, and what stopping early saved."""
        _title("6. The bill")
        row = "    {:14}{:>6}{:>12}{:>13}{:>10}{:>9}{}".format
        print(row("", "ranks", "steps", "evaluations", "seconds", "USD", ""))
        for number, run in enumerate(runs, 1):
            steps, taken = f"{run.began_at} - {run.ended_at}", f"{run.seconds:.1f}"
            print(row(f"run {number}", run.rates.ranks, steps, run.evaluations, taken, _usd(run.seconds), ""))
        total, account = sum(run.seconds for run in runs), status["spent_hours"] * 3600
        print(row("both", "", "", "", f"{total:.1f}", _usd(total), "   by the clock of this program"))
        print(
            row("the guard", "", "", "", f"{account:.1f}", f"{status['spent_usd']:.4f}", "   by the training's own log")
        )
        rates, left = runs[-1].rates, status["total"] - status["step"]
        saved = left * rates.step
        what = f"{left} of {status['total']} steps: {saved:.1f} s, {_usd(saved)} USD at the pilot's rates"
        print(f"\n    Stopping early left out {what}")

    def verdict(self, runs: Sequence[Run], status: dict[str, Any]) -> bool:
        """Print what held and what did not."""
        _title("7. Did the plan hold?")
        taken, projected = sum(run.seconds for run in runs), sum(run.projected for run in runs)
        off, wait = projected / taken - 1, self._wait_share()
        account, unseen = status["spent_hours"] * 3600, self._unseen_s()
        evaluated = {event["step"]: event["loss"] for event in _events(self.run) if event["event"] == "evaluated"}
        best, spent = status["best_step"], status["spent_usd"]
        killed, again, ranks = runs[0].ended_at, runs[1].began_at, runs[1].rates.ranks
        checks = [
            _check(
                abs(off) <= MOST_OFF, "duration",
                f"{projected:.1f} s projected for what was played, {taken:.1f} s taken: {off:+.1%} (at most {MOST_OFF:.0%})",
            ),
            _check(wait <= MOST_WAIT, "data", f"{wait:.2%} of the time was spent waiting for data (at most {MOST_WAIT:.0%})"),
            _check(
                abs(account - unseen - taken) <= MOST_UNCOUNTED * taken + MOST_AT_ENDS_S * len(runs), "account",
                f"{account:.1f} s in the guard's log, {unseen:.1f} of them reckoned for what the killed run could not log; "
                f"{taken:.1f} s by the clock",
            ),
            _check(spent <= BUDGET_USD, "budget", f"{spent:.4f} USD spent of {BUDGET_USD:.2f}"),
            _check(
                0 < again <= killed < again + self._steps_per_epoch, "interruption",
                f"killed after step {killed}, went on from step {again} on {_ranks(ranks)}: {killed - again} steps twice",
            ),
            _check(
                status["ending"] == "stopped early" and evaluated[best] == min(evaluated.values()), "best model",
                f"{status['ending']} at step {status['step']}; put out is step {best}, loss {evaluated[best]:.4f}, the lowest",
            ),
        ]  # fmt: skip
        held = all(checks)
        pairs = [(run.rates.others, run.others) for run in runs]
        if max(map(max, pairs)) >= BUSY:
            said = " and ".join(
                f"{pilot:.0%} in the pilot, {run:.0%} in run {at}" for at, (pilot, run) in enumerate(pairs, 1)
            )
            print(f"\n    note: other programs took of this computer, {said}: rates of a minute ago say little then")
        print(f"\n{'The plan held.' if held else 'The plan did not hold.'} All files are in {self.folder}")
        return held

    def compare(self, status: dict[str, Any]) -> None:
        """Hold the model that was put out against the last one, row by row."""
        _title("5. Is the best checkpoint no worse than the last one, and how sure is that?")
        last, best = (self.run / "rows" / f"step-{step:09d}.jsonl" for step in (status["step"], status["best_step"]))
        self._shardprep("compare", last, best, "--metric", "correct", "--delta", "1pp")

    # ---- what it is made of ----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Read the data set's numbers."""
        data = shardprep.open(str(self.shards), cache_dir=str(self.folder / "cache"))
        self._rows, self._steps_per_epoch = data.splits, data.loader("train", batch_tokens=1024, slots=2).steps
        self._half = EPOCHS // 2 * self._steps_per_epoch

    @property
    def kill_at(self) -> int:
        """Return the step to kill at: a quarter of the way, and not right after a checkpoint."""
        return self._half // 2 + self._steps_per_epoch // 4

    def status(self) -> dict[str, Any]:
        """Return how the training ended."""
        status: dict[str, Any] = json.loads((self.run / "status.json").read_text())
        return status

    def _program(self, ranks: int) -> list[str]:
        launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return [sys.executable, *launcher, "pipelines/train.py", str(self.shards)]

    def _shardprep(self, *words: object, quiet_errors: bool = False) -> None:
        _say(["shardprep", *map(str, words)])
        command = [sys.executable, "-m", "shardprep", *map(str, words)]
        done = subprocess.run(command, env=self.environment, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603  built here
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            raise SystemExit(f"train-demo: shardprep {words[0]} ended with exit code {done.returncode}")
        print(textwrap.indent(done.stdout if quiet_errors else done.stdout + done.stderr, "    "), end="", flush=True)

    def _step(self) -> int:
        """Return the last step that was counted."""
        path = self.run / "budget.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return next((record["step"] for record in map(json.loads, reversed(lines)) if record["event"] == "step"), 0)

    def _unseen_s(self) -> float:
        """Return the seconds that the guard added for runs that were killed, from their last line to the kill."""
        return sum(run.unseen_s for run in read_log(str(self.run / "budget.jsonl"), time.time()).runs.values())

    def _wait_share(self) -> float:
        """Return the share of time that the training loops waited, over all ranks and runs."""
        waited = wall = 0.0
        for path in self.metrics.glob("*/train-rank-*.jsonl"):
            last = json.loads(path.read_text().splitlines()[-1])
            waited, wall = waited + last["wait_seconds"], wall + last["wall_seconds"]
        return waited / wall if wall else 1.0


class Load:
    """What other programs take of this computer, from here on."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), _busy_s(), _own_s()

    def others(self) -> float:
        """Return the share of all cores; 0 where the system does not tell."""
        cores, seconds = os.cpu_count() or 1, time.monotonic() - self._began
        return max(0.0, (_busy_s() - self._busy) - (_own_s() - self._own)) / (cores * seconds)


def _busy_s() -> float:
    """Return the seconds that all cores were busy since the start of this Linux, or given to other machines."""
    path = Path("/proc/stat")
    if not path.exists():
        return 0.0
    user, nice, system, _idle, _waiting, irq, softirq, stolen = map(int, path.read_text().split()[1:9])
    return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Return the seconds that this program took, and those it started, as far as they have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / "log.jsonl"
    if path.exists():
        yield from (json.loads(line) for line in path.read_text().splitlines())


def _event(folder: Path, name: str) -> dict[str, Any]:
    return next(event for event in _events(folder) if event["event"] == name)


def _check(held: bool, name: str, text: str) -> bool:
    print(f"    {'held' if held else 'FAILED':8}{name:14}{text}", flush=True)
    return held


def _ranks(number: int) -> str:
    return f"{number} rank{'s' * (number != 1)}"


def _title(text: str) -> None:
    print(f"\n{text}\n", flush=True)


def _say(words: Sequence[str]) -> None:
    text = shlex.join(words).replace(sys.executable, "python").replace("python -m torch.distributed.run", "torchrun")
    print(
        "\n".join(
            textwrap.wrap(f"$ {text}", 120, initial_indent="  ", subsequent_indent="        ", break_on_hyphens=False)
        ),
        flush=True,
    )


def _usd(seconds: float) -> str:
    return f"{seconds / 3600 * PRICE:.4f}"


def main() -> int:
    """Tell the story; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", nargs="?", default="build/train-demo", help="where all of it happens; what is there is replaced"
    )
    folder = Path(os.path.relpath(parser.parse_args().folder, ROOT))
    os.chdir(ROOT)  # paths in what is printed are short, and can be typed
    for old in ("run", "metrics", "pilot-1", "pilot-2"):
        shutil.rmtree(folder / old, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    demo = Demo(folder, ranks=min(2, cores))
    began = time.monotonic()
    demo.build()
    demo.prepare()
    _title(f"2. The pilot: {PILOT_STEPS} steps on one rank")
    one = demo.pilot(1)
    demo.plan(one)
    _title("4. The training, killed on the way")
    first = demo.train(one, kill_at=demo.kill_at)
    other = one
    if demo.ranks > 1:
        print(f"\n  There are {demo.ranks} cores. A pilot on {_ranks(demo.ranks)}:\n", flush=True)
        other = demo.pilot(demo.ranks)
    print(f"\n  and the training again, on {_ranks(demo.ranks)}:\n", flush=True)
    runs = [first, demo.train(other)]
    status = demo.status()
    demo.compare(status)
    demo.bill(runs, status)
    held = demo.verdict(runs, status)
    print(f"The demo took {time.monotonic() - began:.0f} s.")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
