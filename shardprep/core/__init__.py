"""Decisions: pure functions over values. No I/O, clock, environment, logging or global randomness."""
