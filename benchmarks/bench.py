"""What every benchmark is told (corpus, tokenizer, peers), the product's command, and how results are printed."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.runs import Run

ROOT = Path(__file__).parent.parent
WORK = Path(__file__).parent / "work"


@dataclass(frozen=True)
class Bench:
    """What is measured on what.

    corpus      folder that benchmarks/corpus.py made: full/, 20k/, small/, bad/, each with good/ in it
    tokenizer   a tokenizer.json
    peers       folder of the peers' virtual environments (see peers.py); None: only what this environment can run
    """

    corpus: Path
    tokenizer: Path
    peers: Path | None

    def documents(self, part: str) -> Path:
        """Return the folder of a part of the corpus."""
        folder = self.corpus / part / "good"
        if not folder.is_dir():
            sys.exit(f"no {folder}: make it first with `python -m benchmarks.corpus {self.corpus}` (--raw FOLDER)")
        return folder

    def build(self, source: object, output: object, *flags: str) -> list[str]:
        """Return the product's command."""
        return [*shardprep(), "build", str(source), str(output), "--tokenizer", str(self.tokenizer), *flags]


def shardprep() -> list[str]:
    """Return the command of the shardprep that lies beside this Python."""
    script = Path(sys.executable).with_name("shardprep")
    return [str(script)] if script.exists() else [sys.executable, "-m", "shardprep"]


COLUMNS = ("--id-field", "id", "--column", "label:int64")  # what every tool keeps of a document beside its tokens


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags that all benchmarks share; the environment gives their defaults."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--corpus", type=Path, default=Path(os.environ.get("CORPUS", WORK / "corpus")))
    made.add_argument(
        "--tokenizer", type=Path, default=Path(os.environ.get("TOKENIZER", ROOT / "sample/tokenizer.json"))
    )
    made.add_argument("--peers", type=Path, default=os.environ.get("PEERS"), help="folder of their environments")
    made.add_argument("--reps", type=int, default=3, help="repetitions; tools take turns within each")
    return made


def bench_of(options: argparse.Namespace) -> Bench:
    """Return what the flags say, with absolute paths: the tools run elsewhere."""
    peers = None if options.peers is None else Path(options.peers).absolute()
    return Bench(options.corpus.absolute(), options.tokenizer.absolute(), peers)


def fresh(name: str) -> Path:
    """Return a path under benchmarks/work at which nothing is."""
    path = WORK / name
    for leftover in (path, path.with_name(path.name + ".log"), path.with_name(path.name + ".cache")):
        shutil.rmtree(leftover, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def record(name: str, facts: dict[str, object], measured: Run | None = None) -> None:
    """Add one JSON line to benchmarks/work/results.jsonl."""
    run = {k: v for k, v in asdict(measured).items() if k != "output"} if measured is not None else {}
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "results.jsonl").open("a") as file:
        file.write(json.dumps({"benchmark": name, **facts, **run}) + "\n")


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print one Markdown table."""
    print(f"\n### {title}\n")
    for row in (heads, ["---"] * len(heads), *rows):
        print("| " + " | ".join(map(str, row)) + " |")
    print(flush=True)


def middle(values: Sequence[float]) -> float:
    """Return the median; nan of nothing."""
    return median(values) if values else float("nan")
