"""Blocking work on local files and trees, and awaited work under limits."""
