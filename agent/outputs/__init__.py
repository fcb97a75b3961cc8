"""The output directories of tasks, and files that tasks leave elsewhere."""
