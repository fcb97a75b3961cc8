"""The data of jobs on this node: directories that their tasks only read."""
