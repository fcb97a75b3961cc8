"""Python environments of jobs on this node: made once from a lock file or an archive, and kept by key."""
