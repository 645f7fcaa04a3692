"""The search for a document that kills its worker: by object, then by record, each try alone on a worker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shardprep.core.plan import ObjectRef, ScanReport
from shardprep.errors import WorkerError
from shardprep.prep.engine import Engine, WorkerDied
from shardprep.prep.scan import ScanCall, scan

MAX_CULPRITS = 20  # of one job: more is no bad document but a machine or a limit that is too small


@dataclass
class Culprits:
    """What has been found in the job so far: how many documents or objects ended their worker, and deaths seen.

    skip    the same of the task at hand: object name -> records, None for all; byte ranges of one object count anew
    """

    count: int = 0
    deaths: int = 0
    skip: dict[str, frozenset[int] | None] = field(default_factory=dict)


def scan_without_culprits(engine: Engine, call: ScanCall, found: Culprits) -> ScanReport:
    """Return the report of a task whose worker died, with the documents that killed it set aside by name.

    A task of n objects with one such document of m in its object needs about log2(n) + log2(m) deaths. Raises
    WorkerError if workers die on nothing at all, or on more than MAX_CULPRITS documents.
    """
    empty = replace(call.task, objects=(), byte_range=None)
    if isinstance(engine.alone(scan, replace(call, task=empty, dry=True)), WorkerDied):
        raise WorkerError(
            "worker processes die before they read anything: is --memory-limit large enough for the tokenizer?"
        )
    found.skip = {}
    while True:
        before = found.count
        _search(engine, call, list(call.task.objects), found)
        result = engine.alone(scan, replace(call, skip=dict(found.skip)))
        if not isinstance(result, WorkerDied):
            return result
        found.deaths += 1
        if found.count == before:  # every part is fine alone, the whole is not: memory that adds up
            names = ", ".join(ref.name for ref in call.task.objects[:3])
            raise WorkerError(
                f"a worker dies on a task of {len(call.task.objects)} objects ({names}, ...) though it survives every part "
                f"of it: {result.detail}. Give workers more memory (--memory-limit), or fewer workers (--workers)"
            )


def _search(engine: Engine, call: ScanCall, objects: list[ObjectRef], found: Culprits) -> None:
    """Add to `found` what kills a worker among these objects."""
    part = replace(call.task, objects=tuple(objects))
    if not _dies(engine, replace(call, task=part, dry=True, skip=dict(found.skip)), found):
        return
    if len(objects) > 1:
        middle = len(objects) // 2
        _search(engine, call, objects[:middle], found)
        _search(engine, call, objects[middle:], found)
        return
    one = replace(call, task=part, dry=True, skip={})
    parsed = engine.alone(scan, replace(one, only=(0, 0)))
    if isinstance(parsed, WorkerDied):  # it dies while parsing: the object as a whole
        found.deaths += 1
        _add(found, objects[0].name, None)
        return
    _search_records(engine, one, 0, parsed.found, found)


def _search_records(engine: Engine, call: ScanCall, start: int, stop: int, found: Culprits) -> None:
    """Add to `found` which of an object's records start to stop kill a worker."""
    if start >= stop or not _dies(engine, replace(call, only=(start, stop)), found):
        return
    if stop - start == 1:
        _add(found, call.task.objects[0].name, start)
        return
    middle = (start + stop) // 2
    _search_records(engine, call, start, middle, found)
    _search_records(engine, call, middle, stop, found)


def _dies(engine: Engine, call: ScanCall, found: Culprits) -> bool:
    died = isinstance(engine.alone(scan, call), WorkerDied)
    found.deaths += died
    return died


def _add(found: Culprits, name: str, record: int | None) -> None:
    known = found.skip.get(name, frozenset())
    found.skip[name] = None if record is None or known is None else known | {record}
    found.count += 1
    if found.count > MAX_CULPRITS:
        raise WorkerError(
            f"more than {MAX_CULPRITS} documents end their worker process, the last in {name}: that is no single bad document. "
            "Give workers more memory (--memory-limit), or use --tokenizer-backend reference"
        )
