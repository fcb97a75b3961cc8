"""The checkpoints of a node: staging of bases, commits of saves, mounts, and removal of directories."""
