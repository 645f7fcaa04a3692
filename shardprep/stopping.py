"""Early stopping: end a run when its validation metric no longer improves, and keep the checkpoint that was best.

    stopper = EarlyStopping("loss", "min", patience_evaluations=3, min_delta=0.005, min_steps=200, splits=dataset)
    decision = stopper.update(loss, step)      # after each evaluation, with the same value on all ranks
    if decision.is_best: ...                   # keep this checkpoint
    if decision.stop: ...                      # and end; decision.reason says why

The history of evaluations is the whole state: what was decided follows from it and the settings. See docs/stopping.md for
how to choose them, and `shardprep compare --curves` for what stopping cost.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from shardprep.errors import ConfigError, StoreError
from shardprep.stopping_judge import Decision, Judge
from shardprep.stopping_rule import NOT_FINITE_PATIENCE, StoppingRule, check_whole, doubts, rows_of

STATE_VERSION = 1
CURVE_VERSION = 1
CURVE_VARIABLE = "SHARDPREP_CURVE"  # path of the curve file, before the one that the call gives
NEVER_STOP_VARIABLE = (
    "SHARDPREP_NEVER_STOP"  # 1: record, and say where it would have stopped; see compare_curves.run_to_end
)


class EarlyStopping:
    """Decides after each evaluation whether to stop, and whether this checkpoint is the best so far.

    metric, mode, patience_evaluations, min_delta, min_steps, patience_not_finite   see StoppingRule
    splits      proof that there is something to validate on: a data set of shardprep.open, its `.splits`, any mapping of
                split to rows, or the names alone. Without it nothing starts
    split       the split that is evaluated: never the one that is trained on
    curve       path of a JSONL file that holds all evaluations, written anew at each; $SHARDPREP_CURVE goes before it
    never_stop  only record, and say in the reason where it would have stopped; default: $SHARDPREP_NEVER_STOP is 1

    Raises ConfigError if a value is out of range, if mode contradicts what the metric's name means, or if there is no
    validation split. Warns (UserWarning) if the split is too small to tell min_delta from chance.
    """

    def __init__(
        self,
        metric: str,
        mode: str,
        patience_evaluations: int,
        min_delta: float = 0.0,
        min_steps: int = 0,
        *,
        splits: Any = None,
        split: str = "validation",
        patience_not_finite: int = NOT_FINITE_PATIENCE,
        curve: str | os.PathLike[str] | None = None,
        never_stop: bool | None = None,
    ) -> None:
        self.rule = StoppingRule(metric, mode, patience_evaluations, min_delta, min_steps, patience_not_finite)
        self.split = split
        rows = rows_of(split, splits)
        for doubt in doubts(self.rule, split, rows):
            warnings.warn(doubt, UserWarning, stacklevel=2)
        self._curve = os.environ.get(CURVE_VARIABLE) or (None if curve is None else os.fspath(curve))
        self._never_stop = os.environ.get(NEVER_STOP_VARIABLE) == "1" if never_stop is None else never_stop
        self._judge = Judge(self.rule)

    @property
    def best_value(self) -> float | None:
        """Return the best finite value so far; None before there is one."""
        return self._judge.best[1] if self._judge.best else None

    @property
    def best_step(self) -> int | None:
        """Return the step of the best value."""
        return self._judge.best[0] if self._judge.best else None

    @property
    def history(self) -> tuple[tuple[int, float], ...]:
        """Return all evaluations as (step, value)."""
        return tuple(self._judge.history)

    @property
    def stopped(self) -> bool:
        """Return whether the last evaluation said stop: after a resume the loop need not take another step."""
        return self._judge.last is not None and self._told(self._judge.last).stop

    def update(self, value: Any, step: int) -> Decision:
        """Take the value of an evaluation after `step` optimizer steps, and decide.

        An evaluation at the step of the last one is that one again, after a resume: it is not counted twice, and the
        decision is the same. Raises ConfigError if the step lies before the last one, or if value is not a number.
        """
        number = _number(value, self.rule.metric)
        check_whole("step", step, least=0)
        before = self._judge.history[-1][0] if self._judge.history else -1
        if step < before:
            raise ConfigError(
                f"an evaluation at step {step} after one at step {before}: a checkpoint was loaded without the state of its "
                "EarlyStopping; load the state_dict that was saved with it"
            )
        if step == before and self._judge.last is not None:
            return self._told(self._judge.last)
        decision = self._judge.decide(int(step), number)
        if self._curve is not None:
            self.save_curve(self._curve)
        return self._told(decision)

    def _told(self, decision: Decision) -> Decision:
        if not (decision.stop and self._never_stop):
            return decision
        return replace(decision, stop=False, reason=f"goes on as it was told to, else: {decision.reason}")

    def state_dict(self) -> dict[str, Any]:
        """Return settings and history as plain JSON (NaN and infinities as text), to be saved with the checkpoint."""
        history = [[step, value if math.isfinite(value) else str(value)] for step, value in self._judge.history]
        return {"version": STATE_VERSION, "settings": asdict(self.rule) | {"split": self.split}, "history": history}

    def load_state_dict(self, state: Mapping[str, Any], *, new_settings: bool = False) -> None:
        """Continue from a state.

        new_settings: patience, min_delta and min_steps may be others than then; all evaluations are judged again by those
        of now. Raises ConfigError if the state is none, or of other settings.
        """
        try:
            version, then, history = state["version"], dict(state["settings"]), list(state["history"])
            evaluations = [(int(step), float(value)) for step, value in history]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a state of EarlyStopping: {error!r}; load what state_dict() returned") from error
        if version != STATE_VERSION:
            raise ConfigError(f"a state of EarlyStopping of version {version!r}; this shardprep reads {STATE_VERSION}")
        now = asdict(self.rule) | {"split": self.split}
        free = {"patience_evaluations", "patience_not_finite", "min_delta", "min_steps"} if new_settings else set()
        other = [name for name in now if then.get(name) != now[name] and name not in free]
        if other:
            said = ", ".join(f"{name} {then.get(name)!r} then and {now[name]!r} now" for name in other)
            raise ConfigError(
                f"the state of EarlyStopping is of other settings: {said}. Give those of then; to change patience, min_delta "
                "or min_steps on purpose: load_state_dict(state, new_settings=True)"
            )
        self._judge = Judge(self.rule)
        for step, value in evaluations:
            self._judge.decide(step, value)

    def save_curve(self, path: str | os.PathLike[str]) -> None:
        """Write all evaluations as JSONL, whole: the settings, then {"step", "value"} a line; no value where it was NaN."""
        from shardprep.reader.whole_file import write_whole

        head = {"curve": CURVE_VERSION, **asdict(self.rule), "split": self.split}
        rows = [{"step": step, "value": value if math.isfinite(value) else None} for step, value in self._judge.history]
        text = "".join(json.dumps(line) + "\n" for line in (head, *rows))
        name = os.fspath(path)
        try:
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        except OSError as error:
            raise StoreError(f"{name}: its folder cannot be made ({error.strerror})", uri=name) from error
        write_whole(name, text.encode(), durable=False)


def _number(value: Any, metric: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{metric} must be a number, got {value!r}") from error
    if isinstance(value, str | bytes | bool):
        raise ConfigError(f"{metric} must be a number, got {value!r}")
    return number
