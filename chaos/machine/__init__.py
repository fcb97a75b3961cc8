"""The layer below a cluster: the first processes of the machine and of its nodes. Standard library alone."""
