"""A host that is not the head: it gives the head its workers, and its part of a mounted source, until the job ends."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from typing import Any

from shardprep.adapters.sagemaker.children import Piece
from shardprep.adapters.sagemaker.credentials import wait_for_credentials
from shardprep.adapters.sagemaker.hosts import WAIT_S, Hosts, Say, bind_address, connect
from shardprep.adapters.sagemaker.job_config import Own
from shardprep.adapters.sagemaker.meeting import Wire
from shardprep.adapters.sagemaker.mounts import Part, fetch_table, folder_of, look
from shardprep.errors import ShardprepError, WorkerError
from shardprep.storage.mounted import VARIABLE

RECONNECT_S = 5.0
RESTARTS_MAX = 3
BREAKS_MAX = 5  # connections one after the other that end without a word
RESERVE_BYTES = 512 << 20
Line = dict[str, Any]


class Guest:
    """One such host: an event loop over what the head says, what the workers say, and what was found in the folder."""

    def __init__(self, hosts: Hosts, own: Own, scratch: str, say: Say) -> None:
        self._hosts, self._own, self._scratch, self._say = hosts, own, scratch, say
        self._source = hosts.current if bind_address(hosts.current) == hosts.current else ""
        self._events: queue.Queue[Line | None] = queue.Queue()
        self._wire: Wire | None = None
        self._head_address = self._local_address = ""
        self._instructions: Line = {}
        self._workers: Piece | None = None
        self._restarts = self._breaks = 0
        self._part: Part | None = None
        self._state: Line = {}

    def run(self) -> int:
        """Take part until the head says that the job has ended; return 0 only after a clean end."""
        self._connect(self._own.start_deadline_s)
        self._say(f"the head {self._hosts.head} is there")
        try:
            while True:
                line = self._next()
                if "end" in line:
                    return self._ended(line)
                self._heed(line)
        except ShardprepError as error:
            if self._wire is not None:
                self._wire.send(failed=f"{self._hosts.current}: {error.message}")
            raise
        finally:
            self._close()

    def _connect(self, deadline_s: float) -> None:
        connection = connect(
            self._hosts.head, self._own.port, deadline_s=deadline_s, say=self._say, source=self._source
        )
        self._head_address = str(connection.getpeername()[0])
        self._local_address = str(connection.getsockname()[0])
        self._wire = Wire(connection, self._events)
        self._wire.send(host=self._hosts.current, **self._state)

    def _next(self) -> Line:
        """Return the next event; connect anew where the connection broke. Raises WorkerError where the head is gone."""
        while (line := self._events.get()) is None:
            self._breaks += 1
            if self._breaks > BREAKS_MAX:
                raise WorkerError(
                    f"what answers on port {self._own.port} of {self._hosts.head} is not the head of this job: --port chooses "
                    "another port, and its log says whether it runs",
                    host=self._hosts.head,
                )
            self._say(f"the connection to the head {self._hosts.head} broke; trying again")
            time.sleep(WAIT_S)
            try:
                self._connect(RECONNECT_S)
            except WorkerError as error:
                head = self._hosts.head
                raise WorkerError(
                    f"the head {head} is gone and did not say how the job ended: look at its log", host=head
                ) from error
        self._breaks = 0
        return line

    def _heed(self, line: Line) -> None:
        if "scheduler_port" in line and not self._instructions:
            self._instructions = line
            self._start()
        if "look" in line:
            self._tell(looked={folder: look(folder) for folder in line["look"]})
        if "union_port" in line:
            self._keep_union(line)
        if "_workers" in line:
            self._workers_said(line["_workers"])
        if "_part" in line:
            self._part = line["_part"]
            self._say(f"{len(self._part.index):,} files in {self._part.folder}")
            self._tell(files_port=self._part.server.port, files=len(self._part.index))
        if "_error" in line:
            raise line["_error"]

    def _tell(self, **line: Any) -> None:
        self._state.update(line)
        assert self._wire is not None
        self._wire.send(**line)

    def _post(self, **line: Any) -> None:
        """Put an event of this host's own among the head's."""
        self._events.put(line)

    def _start(self) -> None:
        if self._instructions.get("credentials"):
            wait_for_credentials(self._own.credentials_deadline_s, self._say)
        if self._instructions["scheduler_port"]:
            self._start_workers()
        else:
            self._tell(ready=True, workers=0)  # the head works alone; this host waits for the end
        mount = self._instructions.get("mount")
        if mount:
            threading.Thread(target=self._find_part, args=(mount,), name="shardprep-part", daemon=True).start()

    def _start_workers(self) -> None:
        told = self._instructions
        arguments = ["workers", f"tcp://{self._head_address}:{told['scheduler_port']}", "--scratch", self._scratch]
        arguments += ["--host", self._source or self._local_address, "--reserve", str(RESERVE_BYTES)]
        for flag, name in (("--count", "workers"), ("--memory-limit", "memory_limit")):
            arguments += [flag, str(told[name])] if told.get(name) else []
        env = {VARIABLE: os.path.join(self._scratch, "mounts")}
        self._workers = Piece(arguments, lambda line: self._post(_workers=line), env)

    def _workers_said(self, line: Line | None) -> None:
        if line is not None:
            self._say(f"{line['workers']} worker processes, at most {line['memory_limit'] / 1e9:.1f} GB each")
            self._tell(ready=True, workers=line["workers"])
            return
        assert self._workers is not None
        code = self._workers.process.returncode
        self._workers.close()
        self._restarts += 1
        if self._restarts > RESTARTS_MAX:
            raise WorkerError(
                f"the worker processes of {self._hosts.current} ended {self._restarts} times (exit {code})"
            )
        self._say(f"the worker processes ended (exit {code}); starting them again")
        self._start_workers()

    def _find_part(self, mount: Line) -> None:
        self._say(f"looking at {folder_of(mount, self._own.ml_root)}")
        try:
            part = Part(mount, self._own.ml_root, self._source or "0.0.0.0")  # noqa: S104  see bind_address
        except (ShardprepError, OSError) as error:
            wrapped = error if isinstance(error, ShardprepError) else WorkerError(f"{self._hosts.current}: {error}")
            self._post(_error=wrapped)
        else:
            self._post(_part=part)

    def _keep_union(self, line: Line) -> None:
        assert self._part is not None
        union = fetch_table(f"{self._head_address}:{line['union_port']}", "union")
        servers = [f"{self._head_address}:{line['union_port']}", *line["servers"]]
        self._part.keep(union, servers, os.path.join(self._scratch, "mounts"))
        self._tell(union=True)

    def _ended(self, line: Line) -> int:
        code = int(line["exit_code"])
        how, why = line["end"], line.get("why", "")
        self._say(f"the job is done: {why}" if how == "done" else f"the job {how} on the head (exit {code}): {why}")
        return code if how == "done" else code or 1

    def _close(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if self._wire is not None:
            self._wire.close()
        if self._workers is not None:
            self._workers.close()
        if self._part is not None:
            self._part.close()
        sys.stderr.flush()
