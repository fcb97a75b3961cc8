"""Agents as tasks of a Spark application (docs/spark.md)."""
