"""Nodes: their loss, cordons, promises, placement, drains and faults of GPUs."""
