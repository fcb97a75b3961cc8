"""Pools on Hadoop YARN (docs/yarn.md)."""
