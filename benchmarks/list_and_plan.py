"""List a source and plan its scan, as a build does before it reads anything; prints one JSON line.

python -m benchmarks.list_and_plan URI
"""

from __future__ import annotations

import json
import sys
import time

from shardprep.core.plan import plan_id, plan_scan
from shardprep.prep.sources import list_source


def main() -> None:
    begun = time.monotonic()
    listed = list_source(sys.argv[1])
    listing_s = time.monotonic() - begun
    plan = plan_scan(listed.table, seed=0)
    name = plan_id(listed.table, {}, {})
    planning_s = time.monotonic() - begun - listing_s
    columns = (listed.table.keys.nbytes, listed.table.etags.nbytes, listed.table.sizes.nbytes, listed.table.root.nbytes)
    facts = {
        "objects": len(listed.table),
        "tasks": plan.tasks,
        "plan_id": name,
        "listing_s": listing_s,
        "planning_s": planning_s,
        "table_bytes": sum(columns),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
