"""Where checkpoints are kept: implementations of `CheckpointStore` that pass one contract suite."""
