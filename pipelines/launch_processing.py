"""Start `shardprep build` as a SageMaker Processing job: `launch_processing.py --image URI --role ARN SOURCE OUTPUT ...`.

--dry-run prints the request and sends nothing; docs/sagemaker.md shows the rest.
"""

from __future__ import annotations

import sys

from shardprep.adapters.sagemaker.launching import launch
from shardprep.cli import parse_build

if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:], parse_build))
