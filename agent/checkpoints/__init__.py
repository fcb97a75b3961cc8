"""The node's part in checkpoints: bases staged, saves committed, directories mounted and cleared."""
