"""Where a reader stands: a few numbers that name no rank, and what they hold for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from shardprep.core.canonical import Form
from shardprep.core.schedule import PLAN_VERSION
from shardprep.errors import ConfigError


@dataclass(frozen=True)
class ReaderState:
    """The beginning of a step; at the end of epoch e it is (e + 1, 0). The same on all ranks, for any world.

    fingerprint  of the data set (`core.manifest.fingerprint_of`)
    policy       all settings but the seed (`Policy.document`)
    sets         in a mix: epoch and round of each data set, by name
    """

    plan_version: int
    fingerprint: str
    split: str
    seed: int
    epoch: int
    step: int
    policy: Mapping[str, Any]
    sets: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the state as JSON values, under 1 KB."""
        document: dict[str, Any] = {
            "plan_version": self.plan_version,
            "fingerprint": self.fingerprint,
            "split": self.split,
            "seed": self.seed,
            "epoch": self.epoch,
            "step": self.step,
            "policy": dict(self.policy),
        }
        if self.sets:
            document["sets"] = {name: list(position) for name, position in self.sets.items()}
        return document

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return the state in JSON values. Raises ConfigError that names every fault, or the version it was made by."""
        if not isinstance(value, dict):
            raise ConfigError(f"the state of a reader is a JSON object, got {type(value).__name__}")
        version = value.get("plan_version")
        if isinstance(version, int) and version != PLAN_VERSION:
            raise ConfigError(
                f"this state was made with plan version {version}, and this shardprep plays version {PLAN_VERSION}:"
                " continue with the shardprep that made it, or start the epoch anew"
            )
        form = Form()
        state = cls(
            plan_version=form.number(value, "plan_version", ""),
            fingerprint=form.text(value, "fingerprint", ""),
            split=form.text(value, "split", ""),
            seed=int(form.item(value, "seed", "", int)),
            epoch=form.number(value, "epoch", ""),
            step=form.number(value, "step", ""),
            policy=form.item(value, "policy", "", dict),
            sets=_positions(form, value),
        )
        form.number(state.policy, "slots", "policy")
        if form.issues:
            raise ConfigError(f"this is not a state of a shardprep reader: {'; '.join(form.issues)}")
        return state


def check_same(state: ReaderState, other: ReaderState) -> None:
    """Raise ConfigError that names both values of whatever differs, where `state` cannot continue as `other` reads."""
    differ = [
        f"{what} is {mine!r} in the state and {theirs!r} here" for what, mine, theirs in _differences(state, other)
    ]
    if differ:
        raise ConfigError(
            f"the state belongs to another run: {'; '.join(differ)}."
            " Open the data set and give the settings that it was saved with, or start anew"
        )


def _differences(state: ReaderState, other: ReaderState) -> Iterator[tuple[str, Any, Any]]:
    for name, what in _HELD.items():
        mine, theirs = getattr(state, name), getattr(other, name)
        if mine != theirs:
            yield what, mine, theirs
    for key in sorted({*state.policy, *other.policy}):
        mine, theirs = state.policy.get(key, "missing"), other.policy.get(key, "missing")
        if mine != theirs:
            yield key, mine, theirs


def _positions(form: Form, value: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return epoch and round of each set of a mix; none where there is no mix."""
    out = {}
    for name in form.item(value, "sets", "", dict) if "sets" in value else {}:
        numbers = form.numbers(value["sets"], name, "sets").tolist()
        if len(numbers) != 2:
            form.issues.append(f"sets.{name} must be two numbers, an epoch and a round")
            continue
        out[name] = (numbers[0], numbers[1])
    return out


_HELD = {
    "plan_version": "the plan version",
    "fingerprint": "the data set's fingerprint",
    "split": "the split",
    "seed": "the seed",
}
