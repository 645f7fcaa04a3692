"""Credentials that are not there yet: in its first seconds a container's role may not answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from shardprep.adapters.sagemaker.hosts import Say

WAIT_S = 1.0


def wait_for_credentials(
    deadline_s: float,
    say: Say,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Ask for AWS credentials until they are there; False after deadline_s seconds: the build then says what is wrong."""
    import botocore.session
    from botocore.exceptions import BotoCoreError

    began, told = clock(), False
    while True:
        why = "none found"
        try:
            found = botocore.session.Session().get_credentials()
            if found is not None and found.get_frozen_credentials().access_key:
                if told:
                    say(f"credentials are there after {clock() - began:.0f} s")
                return True
        except BotoCoreError as error:
            why = type(error).__name__
        if clock() - began >= deadline_s:
            say(f"no AWS credentials within {deadline_s:g} s ({why}): trying all the same")
            return False
        if not told:
            say(f"no AWS credentials yet ({why}): waiting for the role to answer")
            told = True
        sleep(WAIT_S)
