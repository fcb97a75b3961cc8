"""The agent's decisions: values in, values out; no clock, randomness, I/O or logging."""
