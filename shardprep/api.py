"""The library's calls: the same job as the command line, without its printing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardprep.prep.settings import Settings

if TYPE_CHECKING:  # pyarrow and the rest are only loaded by a build
    from shardprep.prep.build import Built


def build(
    source: str | Path | None,
    output: str | Path,
    *,
    tokenizer: Any,
    say: Callable[[str], None] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Build a data set and return its summary.

    source     prefix, folder, glob or file, local or any URI; None with source_list=FILE
    output     folder or URI; its manifest.json is written last
    tokenizer  path, URI or hub name of a tokenizer.json, or an object with the Tokenizer protocol
    settings   the flags of `shardprep build` with underscores, e.g. id_field="id", columns=["label:int64"]
    say        is called with each line that a person should read

    The summary has found, written, set_aside (by reason), rows, tokens, shards, splits, padding_share, fingerprint,
    manifest (its URI). Raises ShardprepError; ConfigError if the call is wrong. Worker processes import the script
    that calls this: it needs the usual `if __name__ == "__main__":`.
    """
    return build_dataset(source, output, tokenizer, Settings.of(settings), say=say).summary()


def build_dataset(
    source: str | Path | None,
    output: str | Path,
    tokenizer: Any,
    settings: Settings,
    *,
    say: Callable[[str], None] | None = None,
) -> Built:
    """Build a data set, with its report page, and return what was made."""
    from shardprep.prep.build import build as run
    from shardprep.report.page import html_page

    return run(None if source is None else str(source), str(output), tokenizer, settings, page=html_page, say=say)
