"""The decisions of the leader: a snapshot in, actions out. Pure."""
