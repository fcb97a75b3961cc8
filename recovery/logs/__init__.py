"""Stored logs: the output of attempts in the job's store, as segments (docs/decisions/0082)."""
