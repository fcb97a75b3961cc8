"""Kill everything in turn and watch training go on: `python -m examples.demo`."""
