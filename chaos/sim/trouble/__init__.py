"""The trouble of a run: faults from a seed, crashes at chosen effects, planted errors, and an operator."""
