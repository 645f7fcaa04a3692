"""One module for each framework that needs some lines of ours; docs/training.md shows those that need none."""
