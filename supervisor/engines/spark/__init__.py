"""Agents as tasks of a Spark application (docs/engines.md)."""
