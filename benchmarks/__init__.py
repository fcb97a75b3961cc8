"""Measurements against the goals, each a command that prints JSON; see README.md."""
