"""One self-contained HTML page about a data set: pictures, and the same numbers in tables. No scripts, no time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from shardprep.core.buckets import RANDOM_BATCH_ROWS
from shardprep.core.manifest import Manifest
from shardprep.report.elements import Cell, cards, document, folded, scroll, table
from shardprep.report.measures import Measures, SplitMeasure, measures_of, percentiles
from shardprep.report.pictures import bucket_range, length_picture, padding_picture, percent, shard_picture
from shardprep.report.reasons import in_words
from shardprep.report.summary import columns_of, percentile_name


def html_page(manifest: Manifest) -> str:
    """Return the page as text, the same for the same manifest."""
    measures = measures_of(manifest)
    sections = [_head(manifest, measures), _cards(manifest, measures), _warnings(manifest)]
    sections += [_lengths(measures), _padding(measures), _shards(measures)] if measures.histogram.rows else []
    sections += [_ledger(manifest), _splits(measures), _tables(manifest), _foot(manifest)]
    body = "\n".join(filter(None, sections))
    return document(f"shardprep data set {manifest.fingerprint[:12]}", body)


def _head(manifest: Manifest, measures: Measures) -> str:
    return (
        f"<h1>{manifest.ledger.found:,} documents in {measures.shards:,} shards</h1>"
        f'<p class="quiet">shardprep data set <code>{escape(manifest.fingerprint)}</code></p>'
    )


def _cards(manifest: Manifest, measures: Measures) -> str:
    padding, at_random = percent(measures.padding_share), percent(measures.random_padding_share)
    items = [
        (f"{measures.histogram.tokens:,}", "tokens"),
        (f"{measures.histogram.rows:,}", "rows"),
        (f"{sum(manifest.ledger.set_aside.values()):,}", "documents set aside"),
        (padding, f"padding at the bucket edges; {at_random} in random batches of {RANDOM_BATCH_ROWS}"),
        (f"{measures.balance:.4f}", "largest over smallest shard of a split, in tokens"),
    ]
    return cards(items)


def _warnings(manifest: Manifest) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in manifest.warnings)
    return f'<h2 class="bad">Warnings</h2><ul>{items}</ul>' if items else ""


def _lengths(measures: Measures) -> str:
    named = [(split.name, split.histogram) for split in measures.splits if split.histogram.rows]
    if len(named) > 1:
        named.append(("all", measures.histogram))
    heads = ["split", *(percentile_name(p) for p in percentiles(measures.histogram))]
    body: list[list[Cell]] = [[name, *percentiles(histogram).values()] for name, histogram in named]
    return (
        "<h2>Lengths</h2><p>How many tokens the rows have. Thin lines are the edges of the length buckets: the rows "
        "of a bucket are padded to its edge, so edges lie close together where rows are many.</p>"
        f"{scroll(length_picture(measures.histogram, measures.buckets))}{table(heads, body)}"
    )


def _padding(measures: Measures) -> str:
    buckets = measures.buckets
    body: list[list[Cell]] = [[bucket_range(b), b.rows, b.tokens, percent(b.padding_share)] for b in buckets]
    picture = padding_picture(buckets, measures.padding_share, measures.random_padding_share)
    return (
        f"<h2>Padding</h2><p>With every row padded to its bucket's edge, "
        f"<strong>{percent(measures.padding_share)}</strong> of all slots are padding. Random batches of "
        f"{RANDOM_BATCH_ROWS}, each padded to its longest row, would waste "
        f"<strong>{percent(measures.random_padding_share)}</strong>.</p>{scroll(picture)}"
        + folded("buckets as a table", ["lengths", "rows", "tokens", "padding"], body)
    )


def _shards(measures: Measures) -> str:
    parts = ["<h2>Shards</h2><p>Every shard is its split in miniature: any two differ by at most one row.</p>"]
    for split in measures.splits:
        if split.shards:
            body: list[list[Cell]] = [[shard.name, shard.rows, shard.tokens, shard.bytes] for shard in split.shards]
            parts += [
                f"<h3>{escape(split.name)}</h3><p>{escape(_balance_in_words(split))}</p>",
                scroll(shard_picture(split.name, [shard.tokens for shard in split.shards])),
                folded(f"{split.name} as a table", ["shard", "rows", "tokens", "bytes"], body),
            ]
    return "".join(parts)


def _balance_in_words(split: SplitMeasure) -> str:
    tokens = [shard.tokens for shard in split.shards]
    if len(tokens) == 1:
        return f"One shard of {tokens[0]:,} tokens."
    return (
        f"{len(tokens):,} shards of {min(tokens):,} to {max(tokens):,} tokens: the largest has {split.balance:.4f} "
        "times the tokens of the smallest."
    )


def _ledger(manifest: Manifest) -> str:
    ledger = manifest.ledger
    body: list[list[Cell]] = [["found", "", ledger.found], ["written", "", ledger.written]]
    body += [["set aside", f"{in_words(reason)} ({reason})", n] for reason, n in sorted(ledger.set_aside.items())]
    rule = "<p>Every document that was found was either written or set aside, with a reason.</p>"
    parts = ["<h2>Ledger</h2>", rule, table(["documents", "reason", "count"], body)]
    if ledger.set_aside:
        parts.append(
            "<p>The data set's <code>rejects</code> folder names each one that was set aside: object, line, byte "
            "offset, reason.</p>"
        )
    if ledger.documents_cut:
        parts.append(f"<p>{ledger.tokens_cut:,} tokens of {ledger.documents_cut:,} documents were cut off.</p>")
    if ledger.objects:
        counters: list[list[Cell]] = [[name.replace("_", " "), count] for name, count in sorted(ledger.objects.items())]
        parts.append(table(["objects", "count"], counters))
    return "".join(parts)


def _splits(measures: Measures) -> str:
    rows = measures.histogram.rows
    body: list[list[Cell]] = [
        [
            split.name,
            split.histogram.rows,
            percent(split.histogram.rows / rows) if rows else "",
            split.histogram.tokens,
            len(split.shards),
            f"{split.balance:.4f}",
        ]
        for split in measures.splits
    ]
    return "<h2>Splits</h2>" + table(["split", "rows", "share", "tokens", "shards", "largest/smallest"], body)


def _tables(manifest: Manifest) -> str:
    return (
        f"{_duplicates(manifest)}<h2>Tokenizer</h2>{_pairs(manifest.tokenizer)}<h2>Columns</h2>{_columns(manifest)}"
        f"<h2>Settings</h2>{_pairs(manifest.settings)}<h2>Versions</h2>{_pairs(manifest.created_by)}"
    )


def _duplicates(manifest: Manifest) -> str:
    found = {name.replace("_", " "): value for name, value in manifest.duplicates.items() if value}
    return f"<h2>Duplicates</h2>{_pairs(found)}" if found else ""


def _columns(manifest: Manifest) -> str:
    return table(["", ""], [[name, kind] for name, kind in columns_of(manifest).items()], code=1)


def _foot(manifest: Manifest) -> str:
    is_parquet = manifest.settings.get("format") != "recordio"
    who = (
        "Any Parquet reader opens the shards" if is_parquet else "The shards are RecordIO, of recordio-protobuf records"
    )
    return (
        f"<footer>Manifest version {manifest.version}, plan <code>{escape(manifest.plan)}</code>. "
        f"{who}; <code>shardprep verify</code> holds them against the manifest.</footer>"
    )


def _pairs(values: Mapping[str, Any]) -> str:
    """Return a table of names and values, in the order of the names: a manifest that was read back looks the same."""
    body = [[name, _shown(value)] for name, value in sorted(values.items())]
    return table(["", ""], body, code=1)


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
