"""Pools of agents on machines that belong to another resource manager (docs/engines.md)."""
