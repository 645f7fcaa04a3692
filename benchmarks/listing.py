"""One million objects listed and planned. Bar: under 60 s and 1 GiB on the driver.

The listing is made for the test: a small server that answers ListObjectsV2 for keys that exist nowhere, 1,000 a
page, as S3 does. Everything in front of it is the product's and obstore's: listing prefixes side by side, columns,
sorting, the plan's name, the tasks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

from benchmarks.bench import parser, record, table
from benchmarks.runs import run
from tests.servers import BUCKET, environment, free_port


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--objects", type=int, default=1_000_000)
    options = flags.parse_args(arguments)
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.million_server", str(port), str(options.objects)])
    try:
        wait_for(endpoint)
        rows = []
        for rep in range(options.reps):
            command = [sys.executable, "-m", "benchmarks.list_and_plan", f"s3://{BUCKET}/raw"]
            done = run(command, env=environment(endpoint), watch_memory=True).check()
            facts = json.loads(done.output.splitlines()[-1])
            record("listing", {"rep": rep, **facts}, done)
            rows.append(
                (
                    f"{facts['objects']:,}",
                    f"**{done.wall_s:.1f}**",
                    f"{facts['listing_s']:.1f}",
                    f"{facts['planning_s']:.1f}",
                    f"{done.cpu_s:.1f}",
                    f"**{done.driver_bytes / 2**20:,.0f}**",
                    f"{facts['table_bytes'] / max(facts['objects'], 1):.0f}",
                    facts["tasks"],
                )
            )
    finally:
        server.kill()
        server.wait()
    heads = (
        "objects",
        "whole process, s",
        "listing, s",
        "planning, s",
        "CPU s",
        "peak MiB",
        "bytes an object",
        "tasks",
    )
    table("Listing and planning (bar for 1,000,000 objects: under 60 s and 1,024 MiB)", heads, rows)


def wait_for(endpoint: str) -> None:
    """Return once the server answers."""
    for _ in range(300):
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit("the listing's server did not start")
