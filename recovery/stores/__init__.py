"""Stores for checkpoints: implementations of `CheckpointStore` that pass one contract suite."""
