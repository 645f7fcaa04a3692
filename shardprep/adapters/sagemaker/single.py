"""The build as a process of its own, and the job of only one host: nothing but that."""

from __future__ import annotations

import os
from collections.abc import Callable

from shardprep.adapters.sagemaker.children import Build
from shardprep.adapters.sagemaker.credentials import wait_for_credentials
from shardprep.adapters.sagemaker.hosts import Say
from shardprep.adapters.sagemaker.job_config import BuildCall, Own, job_file, needs_credentials
from shardprep.storage.mounted import VARIABLE

POLL_S = 0.5


def start_build(call: BuildCall, scratch: str, shown: Callable[[str], str]) -> Build:
    """Start the build in a process of its own, with a job file in the folder for temporary files."""
    path = os.path.join(scratch, "job.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(job_file(call.places, call.settings))
    flags = ["--dry-run"] if call.dry_run else []
    return Build(path, flags, {VARIABLE: os.path.join(scratch, "mounts")}, shown)


class Single:
    """The only host: the build with workers of its own, as anywhere else."""

    def __init__(self, own: Own, scratch: str, say: Say) -> None:
        self._own, self._scratch, self._say = own, scratch, say
        self.build: Build | None = None
        self.who = "1 host"

    def start(self, call: BuildCall) -> None:
        """Start the build."""
        if needs_credentials(call):
            wait_for_credentials(self._own.credentials_deadline_s, self._say)
        self.build = start_build(call, self._scratch, lambda text: text)

    def wait(self) -> int:
        """Wait for the build's end and return its exit code."""
        assert self.build is not None
        while (code := self.build.poll(POLL_S)) is None:
            pass
        return code

    def stop(self, number: int) -> int | None:
        """Send the build the signal that this process got; return its exit code, None where it had not begun."""
        return self.build.stop(number) if self.build is not None else None

    def end(self, how: str, exit_code: int, why: str) -> None:
        """Do nothing: there is nobody to tell."""

    def close(self) -> None:
        """Do nothing: the build has ended."""
