"""The entry point of a SageMaker Processing job, on each of its hosts: `shardprep build` with all of them.

    python sagemaker_processing.py s3://bucket/raw/ s3://bucket/shards/ --tokenizer s3://bucket/tokenizer.json

Arguments are those of `shardprep build` (also --config FILE, from a mounted folder), and a few of its own: --help.
"""

from __future__ import annotations

import sys

from shardprep.adapters.sagemaker.processing import run_processing
from shardprep.cli import parse_build

if __name__ == "__main__":
    sys.exit(run_processing(sys.argv[1:], parse_build))
