"""Several data sets read as one: each round comes from one of them, by weight."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardprep.core.manifest import TOKENIZER_IDENTITY
from shardprep.core.mixing import MixSet
from shardprep.errors import ConfigError
from shardprep.reader.dataset import Dataset
from shardprep.reader.loader import Loader
from shardprep.reader.plan import Mixed
from shardprep.reader.ref import ShardRef

MOST_SAID = 250  # characters of a mix in a state


class Mix:
    """Data sets by name, their weights among the padded tokens, and the one whose epochs are the mix's.

    Raises ConfigError where tokenizers or columns differ, a weight is missing or not above 0, or `until` names no set.
    """

    def __init__(self, datasets: Mapping[str, Dataset], *, weights: Mapping[str, float], until: str) -> None:
        if not datasets:
            raise ConfigError("a mix needs at least one data set")
        if set(weights) != set(datasets):
            raise ConfigError(
                f"each data set of a mix needs a weight: data sets {', '.join(datasets)}; weights {', '.join(weights)}"
            )
        if until not in datasets:
            raise ConfigError(f'until must name a data set of the mix ({", ".join(datasets)}), got "{until}"')
        self._datasets, self._weights, self._until = dict(datasets), dict(weights), until
        first = next(iter(datasets))
        for name, dataset in self._datasets.items():
            _check_alike(first, self._datasets[first], name, dataset)

    def loader(self, split: str | Mapping[str, str] = "train", **settings: Any) -> Loader:
        """Return the batches of one rank; the settings are those of `Dataset.loader`.

        split  of all data sets, or by name. `batch.name` says which data set a batch is from.
        """
        splits = dict.fromkeys(self._datasets, split) if isinstance(split, str) else dict(split)
        if set(splits) != set(self._datasets):
            raise ConfigError(
                f"each data set of a mix needs a split: {', '.join(self._datasets)}; got {', '.join(splits)}"
            )
        loader = self._datasets[self._until].loader(splits[self._until], **settings)
        refs: list[ShardRef] = []
        sets = []
        for name, dataset in self._datasets.items():
            rows, shards = dataset.part(splits[name], len(refs))
            refs += shards
            sets.append(MixSet(name, rows, dataset.manifest.buckets, self._weights[name]))
        # The names of both sides stand in the error where a state of another mix is given.
        said = (
            f"{name} {float(self._weights[name])!r} x {d.manifest.fingerprint[:12]}"
            for name, d in self._datasets.items()
        )
        whole = f"mix until {self._until} of {', '.join(said)}"
        loader.plan = replace(
            loader.plan,
            split=_short(",".join(dict.fromkeys(f"{name}={splits[name]}" for name in self._datasets))),
            fingerprint=_short(whole),
            refs=tuple(refs),
            sets=(),
            mixed=Mixed(tuple(sets), self._until),
        )
        loader.check()
        return loader


def _short(text: str) -> str:
    """Return a text that tells two apart, and leaves a state below 1 KB."""
    if len(text) <= MOST_SAID:
        return text
    return f"{text[: MOST_SAID - 20]}... {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _check_alike(first: str, one: Dataset, name: str, other: Dataset) -> None:
    for key in TOKENIZER_IDENTITY:
        mine, theirs = one.manifest.tokenizer.get(key), other.manifest.tokenizer.get(key)
        if mine != theirs:
            raise ConfigError(
                f"a mix needs one tokenizer: the {key} of {first} ({one.uri}) is {mine}, that of {name} ({other.uri}) {theirs}"
            )
    columns = [{str(c["name"]): str(c["type"]) for c in dataset.manifest.schema} for dataset in (one, other)]
    for column in sorted({*columns[0], *columns[1]}):
        types = [found.get(column, "missing") for found in columns]
        if types[0] != types[1]:
            raise ConfigError(
                f'a mix needs the same columns: "{column}" is {types[0]} in {first} ({one.uri}) and {types[1]} in {name}'
                f" ({other.uri})"
            )
