"""Two evaluations of the same rows, paired by id: what differs, by how much each row counts, and which rows belong together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from shardprep.errors import ConfigError, SourceError
from shardprep.metric_names import MODES, direction_of
from shardprep.report.compare_reading import NAMED, Floats, Indices, ResultFile

STAND_INS = {"accuracy": "correct", "acc": "correct"}  # the metric's name where its column has another
NO_WEIGHT = "none"
PER_TOKEN = ("loss", "accuracy")  # means over a row's tokens: rows count by their tokens; `correct` is about the row


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of both files that belong together, as indices (rows,), and how many were left out, by cause."""

    baseline: Indices
    candidate: Indices
    left_out: dict[str, int]


def paired(baseline: ResultFile, candidate: ResultFile, *, common: bool) -> Pairs:
    """Pair rows by id, filler rows left out. Raises SourceError where the ids differ or repeat, unless common."""
    first, second = _index(baseline), _index(candidate)
    # Sorted, so that the same results in another order, or from other ranks, have the same interval.
    ids = sorted(first.row.keys() & second.row.keys())
    gone = {
        "only_baseline": [k for k in first.row if k not in second.row and k not in second.repeated],
        "only_candidate": [k for k in second.row if k not in first.row and k not in first.repeated],
        "repeated_baseline": first.repeated,
        "repeated_candidate": second.repeated,
    }
    if not common and any(gone.values()):
        raise SourceError(_told(gone, baseline, candidate, both=len(ids)), key=candidate.name)
    if not ids:
        raise SourceError(
            f"{baseline.name} and {candidate.name} have no id in common, such as {next(iter(first.row), 'none')!r} and "
            f"{next(iter(second.row), 'none')!r}: they are evaluations of different sets",
            key=candidate.name,
        )
    left_out = {cause: len(keys) for cause, keys in gone.items()} | {"filler": first.filler + second.filler}
    return Pairs(
        np.array([first.row[key] for key in ids], np.int64),
        np.array([second.row[key] for key in ids], np.int64),
        {cause: rows for cause, rows in left_out.items() if rows},
    )


@dataclass(frozen=True, slots=True)
class _Index:
    row: dict[str, int]  # ids that occur once
    repeated: list[str]
    filler: int


def _index(file: ResultFile) -> _Index:
    ids = file.ids()
    rows = list(range(file.rows))
    if "weight" in file.columns:
        rows = np.flatnonzero(file.numbers("weight") != 0).tolist()
    if not rows:
        raise SourceError(f"{file.name}: all rows have weight 0, as filler rows have", key=file.name)
    kept = [ids[i] for i in rows]
    repeated = [key for key, times in Counter(kept).items() if times > 1] if len(set(kept)) < len(kept) else []
    row = dict(zip(kept, rows, strict=True))
    for key in repeated:
        del row[key]
    return _Index(row, repeated, file.rows - len(kept))


def _told(gone: dict[str, list[str]], baseline: ResultFile, candidate: ResultFile, *, both: int) -> str:
    where = {
        "only_baseline": f"in {baseline.name} alone",
        "only_candidate": f"in {candidate.name} alone",
        "repeated_baseline": f"more than once in {baseline.name}",
        "repeated_candidate": f"more than once in {candidate.name}",
    }
    said = [
        f"{'1 id is' if len(keys) == 1 else f'{len(keys):,} ids are'} {where[cause]} "
        f"({', '.join(keys[:NAMED])}{', ...' if len(keys) > NAMED else ''})"
        for cause, keys in gone.items()
        if keys
    ]
    return (
        f"not two evaluations of one set: {'; '.join(said)}; {both:,} in both, once. Evaluate both models on the same "
        "rows, or compare the common ones alone with --common"
    )


def metric_column(metric: str | None, baseline: ResultFile, candidate: ResultFile) -> tuple[str, str]:
    """Return (metric, column). Raises ConfigError where it is not said and not clear, or not in both files."""
    both = baseline.columns.keys() & candidate.columns.keys()
    if metric is None:
        found = [name for name in ("loss", "correct", "accuracy") if name in both]
        if len(found) != 1:
            raise ConfigError(
                f"say with --metric what to compare: both files have {', '.join(sorted(both - {'id'})) or 'no metric'}"
            )
        metric = found[0]
    column = metric if metric in both else STAND_INS.get(metric, metric)
    if column not in both:
        if metric in ("perplexity", "ppl"):
            raise ConfigError(
                "perplexity is no mean over rows: compare the loss. Its exponential is the perplexity, so that a loss higher "
                "by 0.01 is a perplexity higher by 1 %"
            )
        lacking = [file.name for file in (baseline, candidate) if column not in file.columns]
        raise ConfigError(
            f'there is no column "{column}" in {" and ".join(lacking)}; both files have {", ".join(sorted(both))}'
        )
    return metric, column


def mode_of(metric: str, mode: str | None) -> str:
    """Return "min" or "max": as given, else as the metric's name says. Raises ConfigError where they differ, or neither."""
    usual = direction_of(metric)
    if mode is not None and mode not in MODES:
        raise ConfigError(f'--mode is "min" or "max", got "{mode}"')
    if mode is not None and usual not in (None, mode):
        raise ConfigError(f"--mode {mode} for {metric}: that name means that {usual}imal is better; leave --mode out")
    if mode is None and usual is None:
        raise ConfigError(f"is a lower or a higher {metric} better? Say --mode min or --mode max")
    return mode or usual or ""


@dataclass(frozen=True, slots=True)
class Sample:
    """The paired values: baseline, candidate and weights float64 (rows,), and the group of each row, if any."""

    baseline: Floats
    candidate: Floats
    weights: Floats
    groups: Indices | None
    weight: str | None  # the column, None: each row counts the same
    by: str | None


def sample_of(
    baseline: ResultFile, candidate: ResultFile, pairs: Pairs, column: str, *, weight: str | None, by: str | None
) -> Sample:
    """Return the values of the pairs. Raises SourceError where weights of a row differ, ConfigError for unknown columns."""
    weight = _weight_column(baseline, candidate, column, weight)
    weights = np.ones(len(pairs.baseline))
    if weight is not None:
        weights = _agreed_weights(baseline, candidate, pairs, weight)
    kept = weights > 0
    if not kept.any():
        raise SourceError(f"{baseline.name}: all rows have {weight} 0", key=baseline.name)
    if by is None and ("piece" in baseline.columns or "piece" in candidate.columns):
        by = "id"  # pieces of one document are no independent rows
    groups = None if by is None else _groups(baseline, pairs, by)
    weights = weights[kept]
    if weight is not None and np.all(weights == weights[0]):
        weight, weights = None, np.ones(len(weights))
    return Sample(
        baseline.numbers(column, pairs.baseline[kept]),
        candidate.numbers(column, pairs.candidate[kept]),
        weights,
        None if groups is None else groups[kept],
        weight,
        by,
    )


def _weight_column(baseline: ResultFile, candidate: ResultFile, column: str, weight: str | None) -> str | None:
    both = baseline.columns.keys() & candidate.columns.keys()
    if weight == NO_WEIGHT:
        return None
    if weight is None:
        likely = ("tokens", "weight") if column in PER_TOKEN else ("weight",)
        return next((name for name in likely if name in both), None)
    if weight not in both:
        raise ConfigError(f'no column "{weight}" to weight rows by in both files; they have {", ".join(sorted(both))}')
    return weight


def _agreed_weights(baseline: ResultFile, candidate: ResultFile, pairs: Pairs, weight: str) -> Floats:
    first, second = baseline.numbers(weight, pairs.baseline), candidate.numbers(weight, pairs.candidate)
    other = np.flatnonzero(first != second)
    if len(other):
        i = int(other[0])
        raise SourceError(
            f"{weight} differs in {len(other):,} of {len(first):,} rows, such as {first[i]:g} at "
            f"{baseline.place(int(pairs.baseline[i]))} and {second[i]:g} at {candidate.place(int(pairs.candidate[i]))}: the two "
            "were not evaluated on the same tokens (another tokenizer, or another longest length). Evaluate both the same "
            f"way; or, if that is what you mean to compare, --weight {NO_WEIGHT}: each row counts the same",
            key=candidate.name,
        )
    if (first < 0).any():
        i = int(np.flatnonzero(first < 0)[0])
        raise SourceError(
            f"{baseline.place(int(pairs.baseline[i]))}: {weight} is {first[i]:g}, below 0", key=baseline.name
        )
    return first


def _groups(baseline: ResultFile, pairs: Pairs, by: str) -> Indices:
    if by not in baseline.columns:
        has = ", ".join(sorted(baseline.columns))
        raise ConfigError(f"--by {by}: no such column in {baseline.name}; it has {has}")
    return np.unique(baseline.labels(by, pairs.baseline), return_inverse=True)[1].astype(np.int64)
