"""The leader: one frozen snapshot in, one list of fenced transactions out, again and again."""
