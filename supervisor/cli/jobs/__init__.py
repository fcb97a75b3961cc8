"""Verbs about jobs, from a job file to the output of its tasks."""
