"""This machine: its memory, processes, pids, owners of files, and how long a kill takes on it."""
