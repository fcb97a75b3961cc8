"""Recovery: from a failure to a restart, and from a save to a committed checkpoint."""
