"""`python -m shardprep`: the command line without its script."""

import sys

from shardprep.cli import main

if __name__ == "__main__":
    sys.exit(main())
