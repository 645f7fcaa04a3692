"""The budget guard: what a training job has cost so far, over all its runs, and when it must stop to stay under its cap.

    guard = BudgetGuard(max_usd=300, price_per_hour=1.41, log="/opt/ml/checkpoints", startup_minutes_billed=5)
    for step, batch in enumerate(loader, start):
        train(batch)
        if guard.step(step):          # True: save a last checkpoint and leave; there is time for it
            break
    guard.close()

With several ranks, rank 0 decides, since no two clocks agree; the others get its answer by one broadcast a step:

    guard = BudgetGuard(..., rank=rank)
    stop = torch.tensor([guard.step(step)], dtype=torch.int8, device=device)
    torch.distributed.broadcast(stop, src=0)
    if stop.item(): ...
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from secrets import token_hex
from types import TracebackType
from typing import Any, Literal, Self

from shardprep.budget_account import Account, bills_json, marginal_cost, number_or_none
from shardprep.budget_log import VERSION, Evaluation, append_line, log_path, read_log
from shardprep.errors import ConfigError

CHECKPOINT_S = 60.0  # kept for the last checkpoint where nothing better is known ...
CHECKPOINT_SHARE = 0.05  # ... but not more than this share of the cap
SAVE_MARGIN = 1.5  # the last save may be slower than the slowest that was timed


class BudgetGuard:
    """Counts billed time and money of a job over all its runs, and says when to stop.

    max_usd                 most USD of all runs together; None: no limit
    max_hours               most billed hours of all runs together (hours of the clock, not times instances); None: no limit
    price_per_hour          USD an hour of one instance; needed with max_usd
    log                     folder (gets budget.jsonl) or file on disk where a line is appended after each step, and which
                            the next run reads. None: the account survives a restart by `state_dict` alone
    instances               how many instances the job has; all are billed while it runs
    startup_minutes_billed  billed minutes of each run before this object is made: download, imports, model loading
    reserve_s               seconds kept for the last checkpoint. None: 60, or 5 % of the cap where that is less; more
                            where saves inside `with guard.saving():` took longer
    rank                    ranks other than 0 neither read nor write the log, and never ask to stop: they get the answer of
                            rank 0 through the loop, as the head of this module shows
    clock, now              seconds that only go forward, and Unix seconds: for tests

    Raises ConfigError for a call that is wrong, a folder that cannot be written, or a log that is none.
    """

    def __init__(
        self,
        max_usd: float | None = None,
        max_hours: float | None = None,
        price_per_hour: float | None = None,
        log: str | os.PathLike[str] | None = None,
        instances: int = 1,
        startup_minutes_billed: float = 0.0,
        *,
        reserve_s: float | None = None,
        rank: int = 0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        _check(max_usd, max_hours, price_per_hour, instances, startup_minutes_billed, reserve_s, rank)
        self.max_usd, self.max_hours = max_usd, max_hours
        self.price_per_hour, self.instances = float(price_per_hour or 0.0), instances
        self.reason = ""
        self._clock, self._now = clock, now
        self._read_at, self._run_s = clock(), 0.0
        self._startup_s = startup_minutes_billed * 60
        self._floor_s = reserve_s
        self._rank, self._run = rank, token_hex(4)
        self._account = Account()
        self._saving_s = 0.0
        self._step_at: float | None = None
        self._broken = self._cut = self._asked = self._closed = False
        self.path = None if log is None else log_path(log)
        if self.path is not None and rank == 0:
            self._begin(self.path)

    # ---- the account -----------------------------------------------------------------------------------------------

    @property
    def run_hours(self) -> float:
        """Return the billed hours of this run, start-up included."""
        return (self._startup_s + self._tick()) / 3600

    @property
    def run_usd(self) -> float:
        """Return what this run has cost, in USD: all instances."""
        return self.run_hours * self._usd_per_hour

    @property
    def spent_hours(self) -> float:
        """Return the billed hours of all runs: hours of the clock, not times instances."""
        return self._account.hours + self.run_hours

    @property
    def spent_usd(self) -> float:
        """Return what all runs have cost, in USD, each at its own price and number of instances."""
        return self._account.usd + self.run_usd

    @property
    def earlier_runs(self) -> int:
        """Return how many runs the account knows besides this one."""
        return len(self._account.runs)

    @property
    def left_s(self) -> float:
        """Return the seconds until the first cap is reached at the present price; infinite without a cap."""
        left = math.inf
        if self.max_hours is not None:
            left = (self.max_hours - self.spent_hours) * 3600
        if self.max_usd is not None:
            left = min(left, (self.max_usd - self.spent_usd) / self._usd_per_hour * 3600)
        return left

    @property
    def reserve_s(self) -> float:
        """Return the seconds that are kept: one more step as long as the longest so far, and the last checkpoint."""
        floor = self._floor_s
        if floor is None:
            floor = max(min(CHECKPOINT_S, CHECKPOINT_SHARE * self._cap_s), SAVE_MARGIN * self._account.longest_save_s)
        return floor + self._account.longest_step_s

    @property
    def _usd_per_hour(self) -> float:
        return self.price_per_hour * self.instances

    @property
    def _cap_s(self) -> float:
        caps = [self.max_hours or math.inf, self.max_usd / self._usd_per_hour if self.max_usd else math.inf]
        return min(caps) * 3600

    def _tick(self) -> float:
        """Return the seconds since this run began. A clock that jumps back stands still meanwhile: nothing is taken back."""
        if not self._closed:
            read_at = self._clock()
            self._run_s += max(0.0, read_at - self._read_at)
            self._read_at = read_at
        return self._run_s

    # ---- what the loop calls ---------------------------------------------------------------------------------------

    def step(self, step: int) -> bool:
        """Count a step that is done; True asks the loop to save a last checkpoint and stop. `reason` then says why.

        Evaluations and saves between two steps count as a part of the step, save what happens in `with guard.saving():`.
        """
        at = self._tick()
        if self._step_at is not None:
            self._account.longest_step_s = max(self._account.longest_step_s, at - self._step_at - self._saving_s)
        self._step_at, self._saving_s = at, 0.0
        self._write("step", step=int(step), **self._spent())
        return self.must_stop(step)

    def must_stop(self, step: int | None = None) -> bool:
        """Return whether the loop should stop now: ask before the first step too, when earlier runs may have spent it all."""
        if self._rank != 0:
            return False
        if not self._asked and self.left_s <= self.reserve_s:
            self._asked = True
            self.reason = self._why()
            self._write("stop", step=step, reason=self.reason, **self._spent())
        return self._asked

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Time a checkpoint: `with guard.saving(): save(...)`. The slowest one says what is kept for the last."""
        began = self._tick()
        try:
            yield
        finally:
            took = self._tick() - began
            self._saving_s += took
            self._account.longest_save_s = max(self._account.longest_save_s, took)

    def evaluated(
        self, metric: str, value: float, step: int, *, mode: Literal["min", "max"] | None = None
    ) -> float | None:
        """Return what one unit of the metric has cost since its last evaluation, in USD (hours without a price).

        mode "max" or "min" says which direction is better: then a value that is no better cost infinitely much. Without a
        mode the size of the change counts, whatever its direction. None at the first evaluation. Earlier runs count too:
        the evaluation before is the last finite one at a smaller step, and the work that was done twice after it is in the cost.
        """
        if mode not in (None, "min", "max"):
            raise ConfigError(f'mode must be "min", "max" or None, got {mode!r}', setting="mode")
        this = Evaluation(int(step), float(value), self.spent_usd, self.spent_hours * 3600)
        before = self._account.evaluated(metric, this)
        cost = None if before is None else marginal_cost(before, this, mode, priced=self.price_per_hour > 0)
        self._write(
            "evaluated", metric=metric, value=number_or_none(this.value), step=this.step, marginal_cost=number_or_none(cost),
            unit="usd" if self.price_per_hour > 0 else "hours", **self._spent(),
        )  # fmt: skip
        return cost

    def close(self) -> None:
        """End the run in an orderly way: its account is then exact. Without it the next run takes it for killed."""
        if not self._closed:
            self._tick()
            self._write("end", **self._spent())
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- surviving -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the account as JSON values, for the checkpoint: it serves where the log was lost with its machine."""
        return self._account.state(self._run, self.run_hours * 3600, self._usd_per_hour)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over an account. Runs that the log knows too count once, at the larger of the two figures.

        Raises ConfigError for something that is no such state.
        """
        if new := self._account.merge(state, self._run):
            self._write("carried", runs=bills_json(new))

    def _begin(self, path: str) -> None:
        """Read what earlier runs spent, and begin this one's part of the log."""
        began = self._now()
        history = read_log(path, began)
        self._account = Account.of(history)
        record = {
            "event": "run", "run": self._run, "time": began, "run_s": 0.0, "version": VERSION,
            "price_per_hour": self.price_per_hour, "instances": self.instances, "startup_s": self._startup_s,
            "earlier_runs": len(self._account.runs), **self._spent(),
        }  # fmt: skip
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            append_line(path, record, on_new_line=not history.whole)
        except OSError as error:
            raise ConfigError(
                f"cannot write the budget log {path} ({error.strerror}): without it a restarted job forgets what it has spent; "
                "give log= a folder that can be written and that outlives the machine",
                log=path,
            ) from error

    def _spent(self) -> dict[str, float]:
        return {"spent_usd": round(self.spent_usd, 9), "spent_hours": round(self.spent_hours, 10)}

    def _write(self, event: str, **values: Any) -> None:
        if self.path is None or self._rank != 0 or self._closed:
            return
        record = {"event": event, "run": self._run, "time": self._now(), "run_s": round(self._run_s, 4), **values}
        try:
            append_line(self.path, record, on_new_line=self._cut)
            self._cut = False
        except OSError as error:
            self._cut = True  # a part of the line may be there
            if not self._broken:
                self._broken = True
                warnings.warn(
                    f"{self.path}: the budget log cannot be written now ({error.strerror}); training goes on and the cap still "
                    "holds, and each later step tries again. A restart counts what was written, and the last checkpoint",
                    stacklevel=3,
                )

    def _why(self) -> str:
        parts = []
        if self.max_usd is not None:
            parts.append(f"{self.spent_usd:,.2f} of {self.max_usd:,.2f} USD")
        if self.max_hours is not None:
            parts.append(f"{self.spent_hours:,.2f} of {self.max_hours:,.2f} hours")
        return (
            f"budget: {' and '.join(parts)} spent over {self.earlier_runs + 1} run{'s' * (self.earlier_runs > 0)}; "
            f"{max(0.0, self.left_s):,.0f} s are left, and {self.reserve_s:,.0f} s are kept for one more step and a last checkpoint"
        )


def _check(
    max_usd: float | None,
    max_hours: float | None,
    price_per_hour: float | None,
    instances: int,
    startup_minutes_billed: float,
    reserve_s: float | None,
    rank: int,
) -> None:
    problems = [
        f"{name} must be a number above 0 or None, got {value!r}"
        for name, value in (("max_usd", max_usd), ("max_hours", max_hours))
        if value is not None and not (_is_number(value) and value > 0)
    ]
    problems += [
        f"{name} must be a number, 0 or more, got {value!r}"
        for name, value in (
            ("price_per_hour", price_per_hour or 0.0),
            ("startup_minutes_billed", startup_minutes_billed),
            ("reserve_s", reserve_s or 0.0),
        )
        if not (_is_number(value) and value >= 0)
    ]
    if max_usd is not None and not price_per_hour:
        problems.append(f"max_usd needs price_per_hour, the USD an hour of one instance, got {price_per_hour!r}")
    if not isinstance(instances, int) or isinstance(instances, bool) or instances < 1:
        problems.append(f"instances must be a whole number, 1 or more, got {instances!r}")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
        problems.append(f"rank must be a whole number, 0 or more, got {rank!r}")
    if problems:
        raise ConfigError("; ".join(problems), problems=problems)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
