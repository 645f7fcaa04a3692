"""The reader: from a manifest to batches. Imports no preparation, no Dask, no torch."""
