"""`shardprep inspect` in numbers: one clear screen for a person, or one JSON object for a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardprep.core.buckets import RANDOM_BATCH_ROWS
from shardprep.core.manifest import Manifest
from shardprep.report.measures import Measures, longest, measures_of, percentiles
from shardprep.report.reasons import in_words

PERCENTILE_NAMES = {0: "shortest", 50: "median", 100: "longest"}
LABEL_WIDTH = 12


def summary_json(manifest: Manifest) -> dict[str, Any]:
    """Return the numbers as JSON values; shares and balances are floats, everything else counts."""
    measures, ledger, escapes = measures_of(manifest), manifest.ledger, _escapes(manifest)
    return {
        "version": manifest.version,
        "fingerprint": manifest.fingerprint,
        "plan": manifest.plan,
        "found": ledger.found,
        "written": ledger.written,
        "set_aside": dict(sorted(ledger.set_aside.items())),
        "rows": measures.histogram.rows,
        "tokens": measures.histogram.tokens,
        "tokens_cut": ledger.tokens_cut,
        "documents_cut": ledger.documents_cut,
        "objects": dict(ledger.objects),
        "shards": measures.shards,
        **({} if escapes is None else {"escapes": escapes}),
        "splits": {
            split.name: {
                "rows": split.histogram.rows,
                "tokens": split.histogram.tokens,
                "shards": len(split.shards),
                "bytes": sum(shard.bytes for shard in split.shards),
                "balance": split.balance,
                "lengths": {str(p): length for p, length in percentiles(split.histogram).items()},
            }
            for split in measures.splits
        },
        "balance": measures.balance,
        "lengths": {str(p): length for p, length in percentiles(measures.histogram).items()},
        "longest": [{"length": length, "rows": rows} for length, rows in longest(measures.histogram)],
        "padding_share": measures.padding_share,
        "random_padding_share": measures.random_padding_share,
        "bucket_edges": list(manifest.buckets.edges),
        "pad_multiple": manifest.buckets.pad_multiple,
        "tokenizer": dict(manifest.tokenizer),
        "columns": columns_of(manifest),
        "created_by": dict(manifest.created_by),
        "warnings": list(manifest.warnings),
        "duplicates": dict(manifest.duplicates),
    }


def _escapes(manifest: Manifest) -> int | None:
    """Return how many magic words were escaped in RecordIO shards; None for other formats."""
    counts = [shard.escapes for shard in manifest.shards if shard.escapes is not None]
    return sum(counts) if counts else None


def summary_text(manifest: Manifest) -> str:
    """Return the numbers as lines of at most about 100 characters."""
    measures, ledger = measures_of(manifest), manifest.ledger
    rows, tokens = measures.histogram.rows, measures.histogram.tokens
    aside = sum(ledger.set_aside.values())
    lines = [
        _labelled("data set", f"{manifest.fingerprint}  (plan {manifest.plan}, manifest version {manifest.version})"),
        _labelled("documents", f"{ledger.found:,} found = {ledger.written:,} written + {aside:,} set aside"),
    ]
    by_count = sorted(ledger.set_aside.items(), key=lambda item: (-item[1], item[0]))
    lines += [_labelled("", f"{count:>12,}  {in_words(reason)} ({reason})") for reason, count in by_count]
    if ledger.documents_cut:
        lines.append(_labelled("cut off", f"{ledger.tokens_cut:,} tokens of {ledger.documents_cut:,} documents"))
    size = sum(shard.bytes for split in measures.splits for shard in split.shards)
    lines.append(_labelled("rows", f"{rows:,} with {tokens:,} tokens in {measures.shards:,} shards, {_size(size)}"))
    escapes = _escapes(manifest)
    if escapes is not None:
        lines.append(_labelled("", f"RecordIO, {escapes:,} magic words escaped"))
    lines += ["", *_splits(measures), "", *_lengths(measures), ""]
    lines += [
        _labelled("padding", f"{_percent(measures.padding_share)} of all slots at the bucket edges, multiples of "
                  f"{manifest.buckets.pad_multiple}"),
        _labelled("", f"{_percent(measures.random_padding_share)} in random batches of {RANDOM_BATCH_ROWS}"),
        _labelled("longest", ", ".join(f"{length:,}" + (f" ({n:,} rows)" if n > 1 else "")
                  for length, n in longest(measures.histogram)) or "no rows"),
        *_tokenizer(manifest.tokenizer),
        _labelled("columns", ", ".join(f"{name} {kind}" for name, kind in columns_of(manifest).items())),
    ]  # fmt: skip
    lines += [_labelled("warning" if i == 0 else "", text) for i, text in enumerate(manifest.warnings)]
    return "\n".join(line.rstrip() for line in lines)


def columns_of(manifest: Manifest) -> dict[str, str]:
    """Return the columns of a shard and their types, in order."""
    return {str(column.get("name")): str(column.get("type")) for column in manifest.schema}


def _tokenizer(tokenizer: dict[str, Any]) -> list[str]:
    """Return what the ids hang on in one line, then the notes."""
    facts = {name: value for name, value in tokenizer.items() if isinstance(value, str | int)}
    facts["fingerprint"] = str(facts.get("fingerprint", ""))[:12]
    lines = [_labelled("tokenizer", ", ".join(f"{name} {value}" for name, value in facts.items()))]
    notes = tokenizer.get("notes")
    return lines + ([_labelled("", str(note)) for note in notes] if isinstance(notes, list | tuple) else [])


def _splits(measures: Measures) -> list[str]:
    head = ["split", "rows", "tokens", "shards", "largest/smallest"]
    body = [
        [s.name, f"{s.histogram.rows:,}", f"{s.histogram.tokens:,}", f"{len(s.shards):,}", f"{s.balance:.4f}"]
        for s in measures.splits
    ]
    return _columns([head, *body])


def _lengths(measures: Measures) -> list[str]:
    used = [split for split in measures.splits if split.histogram.rows]
    named = [(split.name, split.histogram) for split in used]
    if len(named) > 1:
        named.append(("all", measures.histogram))
    head = ["lengths", *(percentile_name(p) for p in percentiles(measures.histogram))]
    return _columns([head, *([name, *(f"{n:,}" for n in percentiles(h).values())] for name, h in named)])


def percentile_name(percentile: int) -> str:
    """Return what a percentile is called in the head of a table."""
    return PERCENTILE_NAMES.get(percentile, f"{percentile} %")


def _columns(table: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with the first column left-aligned and all others right-aligned."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    widths[0] = max(widths[0], LABEL_WIDTH - 2)
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]


def _labelled(label: str, text: str) -> str:
    return f"{label.ljust(LABEL_WIDTH)}{text}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _size(size_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"
