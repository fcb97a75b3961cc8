"""Commits: taking a save, committing it, and staging a commit as the base of a generation."""
