"""The output of tasks: its files, the steps and signs of life in it, and dumps of stacks."""
