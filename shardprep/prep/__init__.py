"""The job: ask the core, do it, hand back the answer."""
