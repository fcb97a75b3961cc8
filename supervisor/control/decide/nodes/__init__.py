"""Nodes: their loss, cordons, placement, drains and faults of GPUs."""
