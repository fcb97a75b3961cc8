"""What the snapshot implies, and no more. Many modules read facts; facts write nothing."""
