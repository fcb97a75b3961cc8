"""This machine: its memory, processes, pids, owners of files, and the duration of a kill."""
