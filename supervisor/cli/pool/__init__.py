"""Verbs about pools of agents on machines of another resource manager."""
