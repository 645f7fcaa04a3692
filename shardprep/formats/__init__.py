"""Bytes to values and back; no storage."""
