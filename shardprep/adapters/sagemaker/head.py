"""The head: it gathers the hosts, runs the build on their workers, and tells them how it ended."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardprep.adapters.sagemaker.children import Build, Piece
from shardprep.adapters.sagemaker.credentials import wait_for_credentials
from shardprep.adapters.sagemaker.hosts import Hosts, Say, bind_address
from shardprep.adapters.sagemaker.job_config import BuildCall, Own, check_list, needs_credentials
from shardprep.adapters.sagemaker.meeting import Meeting
from shardprep.adapters.sagemaker.mounts import MountPlan, Part, check_same, fetch_table, look, plan_mount
from shardprep.adapters.sagemaker.single import POLL_S, start_build
from shardprep.errors import ShardprepError, WorkerError
from shardprep.prep.settings import parse_bytes
from shardprep.storage.mounted import VARIABLE
from shardprep.storage.mounted_server import to_bytes, union_of
from shardprep.storage.store import local_path_of

RESERVE_BYTES = 2 << 30  # for the scheduler, the build and this process
WORKERS_DEADLINE_S = 120.0  # hosts that are ready have their workers at the scheduler by then
LEAVE_S = 10.0
TELL_EVERY_S = 15.0
Line = dict[str, Any]


class Head:
    """The head of a job with several hosts. `run` returns the build's exit code and its JSON object."""

    def __init__(self, hosts: Hosts, own: Own, scratch: str, say: Say) -> None:
        self._hosts, self._own, self._scratch, self._say = hosts, own, scratch, say
        self._began = time.monotonic()
        self._changed = threading.Condition()
        self._bind = bind_address(hosts.current)
        self._mounts = os.path.join(scratch, "mounts")
        self._at_scheduler = 0
        self._scheduler_port = 0
        self._mine = 0  # worker processes on this host
        self._gone: list[str] = []  # pieces that ended by themselves
        self._closers: list[Callable[[], None]] = []
        self._meeting: Meeting | None = None
        self.build: Build | None = None
        self._without: list[str] = []  # hosts that did not come

    def start(self, call: BuildCall) -> None:
        """Gather the hosts and their workers. Raises ShardprepError where the job cannot begin."""
        settings = call.settings
        is_ours = settings.scheduler in ("local", "serial") and not settings.shared_filesystem
        self._plan = plan = plan_mount(call.places["source"], self._own.ml_root) if is_ours else None
        has_cluster = settings.scheduler == "local" and not call.dry_run
        if has_cluster and is_ours and settings.source_list:
            check_list(settings.source_list)
        if has_cluster:
            self._start_scheduler()
        limit = None if settings.memory_limit is None else parse_bytes(settings.memory_limit)
        hello: Line = {
            "scheduler_port": self._scheduler_port,
            "workers": settings.workers,
            "memory_limit": limit,
            "mount": plan.line() if plan else None,
            "credentials": needs_credentials(call),
        }
        self._meet(hello)
        if has_cluster:
            self._start_workers(settings.workers, limit)
        part = self._own_part(plan) if plan else None
        self._wait_for_hosts(plan)
        if part is not None:
            self._put_together(part)
        if settings.shared_filesystem:
            self._check_shared(call)
        if has_cluster:
            self._wait_for_workers()
        self._start_build(call, has_cluster=has_cluster)

    def wait(self) -> int:
        """Wait for the build's end and return its exit code; hosts that are lost meanwhile are told of."""
        assert self.build is not None
        while (code := self.build.poll(POLL_S)) is None:
            for piece in self._gone:
                self._say(f"{piece} ended by itself; the build goes on with what is left")
            self._gone.clear()
        return code

    def stop(self, number: int) -> int | None:
        """Send the build the signal that this process got; return its exit code, None where it had not begun."""
        return self.build.stop(number) if self.build is not None else None

    def end(self, how: str, exit_code: int, why: str) -> None:
        """Tell the other hosts how the job ended, those too that are still to come, and end all that was started."""
        if self._meeting is None and how != "stopped":
            try:
                self._meet({})
            except ShardprepError as error:
                self._say(error.message)
        if self._meeting is None:
            return
        left_s = self._own.start_deadline_s - (time.monotonic() - self._began)
        late = tuple(name for name in self._hosts.others if name not in self._meeting.guests)
        if how == "stopped" or left_s <= 0:
            late = ()
        if late:
            self._say(f"telling {', '.join(late)} as well, which did not come yet: for {left_s:.0f} s at most")
        self._meeting.end(how, exit_code, why, patience_s=max(LEAVE_S, left_s) if late else LEAVE_S, late=late)

    def close(self) -> None:
        """End all that was started, the last first."""
        while self._closers:
            self._closers.pop()()

    @property
    def who(self) -> str:
        """Return which hosts took part, for the exit message."""
        total = len(self._hosts.names)
        lost = [name for name in self._meeting.missing if name not in self._without] if self._meeting else []
        parts = [f"{total} hosts"]
        if self._without:
            parts = [
                f"{total - len(self._without)} of {total} hosts, without {', '.join(self._without)}, which did not come"
            ]
        return ", ".join([*parts, *([f"without {', '.join(lost)}, lost on the way"] if lost else [])])

    def shown(self, text: str) -> str:
        """Return a text of the build with the names that the user knows."""
        return self._plan.shown(text) if self._plan else text

    _plan: MountPlan | None = None

    def _meet(self, hello: Line) -> None:
        self._meeting = Meeting(self._bind, self._own.port, self._hosts.others, hello, self._say)
        self._closers.append(self._meeting.close)

    def _start_scheduler(self) -> None:
        arguments = ["scheduler", "--host", self._bind, "--port", str(self._own.scheduler_port)]
        piece = Piece(arguments, self._scheduler_said, {})
        self._closers.append(piece.close)
        with self._changed:
            ready = self._changed.wait_for(lambda: self._scheduler_port or self._gone, WORKERS_DEADLINE_S)
        if not ready or self._gone:
            raise WorkerError(
                f"the Dask scheduler does not start on {self._bind}:{self._own.scheduler_port}; --scheduler-port chooses another "
                "port, and the log above says more"
            )

    def _scheduler_said(self, line: Line | None) -> None:
        with self._changed:
            if line is None:
                self._gone.append("the Dask scheduler")
            else:
                self._scheduler_port = line.get("port", self._scheduler_port)
                self._at_scheduler = line.get("workers", self._at_scheduler)
            self._changed.notify_all()

    def _start_workers(self, count: int | None, limit: int | None) -> None:
        address = self._hosts.current if self._bind == self._hosts.current else "127.0.0.1"
        arguments = [
            "workers",
            f"tcp://{address}:{self._scheduler_port}",
            "--host",
            address,
            "--scratch",
            self._scratch,
        ]
        arguments += ["--reserve", str(RESERVE_BYTES)]
        arguments += ["--count", str(count)] if count else []
        arguments += ["--memory-limit", str(limit)] if limit else []

        def heard(line: Line | None) -> None:
            with self._changed:
                if line is None:
                    self._gone.append("the worker processes of this host")
                else:
                    self._mine = line["workers"]
                    self._say(f"{self._mine} worker processes, at most {line['memory_limit'] / 1e9:.1f} GB each")
                self._changed.notify_all()

        self._closers.append(Piece(arguments, heard, {VARIABLE: self._mounts}).close)

    def _own_part(self, plan: MountPlan) -> Part:
        part = Part(plan.line(), self._own.ml_root, self._bind)
        self._closers.append(part.close)
        self._say(f"{len(part.index):,} files in {part.folder}")
        return part

    def _wait_for_hosts(self, plan: MountPlan | None) -> None:
        """Wait until all hosts have come and are ready; go on with fewer where that was asked for."""
        meeting = self._meeting
        assert meeting is not None
        needed = ("ready", "files_port") if plan else ("ready",)

        def absent() -> list[str]:
            return [name for name in meeting.missing if name not in self._without]

        def unready() -> list[str]:
            present = (guest for guest in meeting.present if guest.name not in self._without)
            return [guest.name for guest in present if not all(name in guest.said for name in needed)]

        deadline = self._began + self._own.start_deadline_s
        self._patiently(absent, deadline, plan)
        self._check_enough(absent(), "did not come", plan)
        # A folder of millions of files takes its time, as long as its host is there.
        self._patiently(unready, None if plan else max(deadline, time.monotonic() + WORKERS_DEADLINE_S), plan)
        self._check_enough([*absent(), *unready()], "did not get ready", plan)
        here = len(self._hosts.names) - len(self._without)
        self._say(f"{here} hosts are ready" if self._without else f"all {here} hosts are ready")

    def _patiently(self, waited_for: Callable[[], list[str]], deadline: float | None, plan: MountPlan | None) -> None:
        """Wait until there are no hosts to wait for, or until the deadline; one that fails is one that does not come."""
        meeting = self._meeting
        assert meeting is not None
        while True:
            left_s = TELL_EVERY_S if deadline is None else min(TELL_EVERY_S, deadline - time.monotonic())
            is_over = meeting.wait(lambda: not waited_for() or bool(self._failed()), left_s)
            failed = self._failed()
            if failed:
                self._check_enough(list(failed), "failed", plan)
            elif is_over or (deadline is not None and time.monotonic() >= deadline):
                return
            else:
                self._say(f"waiting for {', '.join(waited_for())} since {time.monotonic() - self._began:.0f} s")

    def _failed(self) -> dict[str, str]:
        """Return why hosts cannot take part, by name, but for those that the job goes on without."""
        assert self._meeting is not None
        guests = dict(self._meeting.guests)
        return {
            name: str(guest.said["failed"])
            for name, guest in sorted(guests.items())
            if "failed" in guest.said and name not in self._without
        }

    def _check_enough(self, missing: list[str], what: str, plan: MountPlan | None) -> None:
        """Note who is missing. Raises WorkerError where the job cannot go on without them."""
        missing = sorted({*missing, *self._without})
        if missing == self._without:
            return
        here, total = len(self._hosts.names) - len(missing), len(self._hosts.names)
        names, failed = ", ".join(missing), self._failed()
        why = f"{here} of {total} hosts are ready, {names} {what}"
        why += f": {'; '.join(failed.values())}" if failed else f" within {self._own.start_deadline_s:g} s"
        if plan is not None:
            raise WorkerError(
                f"{why}. Their part of {plan.given} would be missing: run the job again, or give the s3:// URI"
            )
        if self._own.min_hosts is None or here < self._own.min_hosts:
            raise WorkerError(f"{why}. Run the job again; --min-hosts {here} would have gone on")
        self._say(f"{why}; going on, as --min-hosts {self._own.min_hosts} says")
        self._without = missing

    def _put_together(self, part: Part) -> None:
        meeting = self._meeting
        assert meeting is not None
        guests = sorted(meeting.present, key=lambda guest: guest.name)
        servers = [f"{guest.address}:{guest.said['files_port']}" for guest in guests]
        tables = {self._hosts.current: part.index}
        tables |= {guest.name: fetch_table(server, "index") for guest, server in zip(guests, servers, strict=True)}
        union = union_of(tables)
        self._say(f"{len(union):,} files on {len(tables)} hosts together")
        part.server.answers["/union"] = to_bytes(union)
        port = part.server.port
        part.keep(union, [f"127.0.0.1:{port}", *servers], self._mounts)
        meeting.tell(union_port=port, servers=servers)
        if not meeting.wait(
            lambda: all("union" in g.said for g in meeting.present) or bool(meeting.missing), WORKERS_DEADLINE_S
        ):
            raise WorkerError("hosts do not take the index of the mounted source; look at their logs")
        if meeting.missing:
            raise WorkerError(
                f"lost {', '.join(meeting.missing)}, with its part of the mounted source: run the job again"
            )

    def _check_shared(self, call: BuildCall) -> None:
        """Raise ConfigError where a local folder is not one and the same on all hosts."""
        meeting = self._meeting
        assert meeting is not None
        places = (call.places["source"], call.places["output"], call.settings.staging)
        folders = {}
        for place in places:
            path = None if place is None else local_path_of(place)
            if path is not None:
                full = os.path.abspath(path)
                folders[full if os.path.isdir(full) else os.path.dirname(full)] = place
        if not folders:
            return
        meeting.tell(look=list(folders))
        if not meeting.wait(lambda: all("looked" in guest.said for guest in meeting.present), WORKERS_DEADLINE_S):
            raise WorkerError("hosts do not say what they see in the shared folder; look at their logs")
        for folder in folders:
            check_same(folder, look(folder), {g.name: g.said["looked"][folder] for g in meeting.present})

    def _wait_for_workers(self) -> None:
        meeting = self._meeting
        assert meeting is not None

        def expected() -> int:
            return self._mine + sum(int(guest.said.get("workers", 0)) for guest in meeting.present)

        def there() -> bool:
            return bool(self._gone) or (self._mine > 0 and self._at_scheduler >= expected())

        with self._changed:
            self._changed.wait_for(there, WORKERS_DEADLINE_S)
        if self._gone:
            raise WorkerError(
                f"{self._gone[0]} ended before the build began; a --memory-limit may be too small, or the disk full"
            )
        if self._at_scheduler < expected() and self._own.min_hosts is None:
            raise WorkerError(
                f"{self._at_scheduler} of {expected()} workers came to the scheduler; look at the logs of the hosts"
            )
        self._say(f"{self._at_scheduler} workers on {len(meeting.present) + 1} hosts")

    def _start_build(self, call: BuildCall, *, has_cluster: bool) -> None:
        if needs_credentials(call):
            wait_for_credentials(self._own.credentials_deadline_s, self._say)
        places, settings = dict(call.places), call.settings
        if self._plan:
            places["source"] = self._plan.uri
        if has_cluster:
            address = self._hosts.current if self._bind == self._hosts.current else "127.0.0.1"
            settings = replace(
                settings, scheduler=f"tcp://{address}:{self._scheduler_port}", workers=None, memory_limit=None
            )
        self.build = start_build(replace(call, places=places, settings=settings), self._scratch, self.shown)
