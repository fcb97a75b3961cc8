"""Jobs and nodes at rest: nothing is decided about them until something changes that was read of them."""
