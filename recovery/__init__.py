"""How a failure becomes a restart, and from what."""
