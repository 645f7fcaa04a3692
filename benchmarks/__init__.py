"""What shardprep must reach, measured: `make bench`, or `python -m benchmarks NAME ...` for one of them."""
