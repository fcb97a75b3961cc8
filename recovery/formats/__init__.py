"""The formats of checkpoints, of TensorFlow and our own: read, written and compared. Pure."""
