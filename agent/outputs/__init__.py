"""The output directories of tasks, and what tasks leave elsewhere."""
