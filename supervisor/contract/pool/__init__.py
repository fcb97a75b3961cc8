"""Pools of agents to which supervisors issue certificates."""
