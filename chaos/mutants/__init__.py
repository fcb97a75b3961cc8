"""Small, plausible bugs, each put into a copy of the tree: the checkers of promises must notice it."""
