"""Pools on Hadoop YARN (docs/engines.md)."""
