"""What checkpoints are and which one to take: pure, values in and values out."""
