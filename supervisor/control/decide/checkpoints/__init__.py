"""Checkpoints in decisions: the base of a generation, commits, quarantine and collection."""
