"""A job as its user describes it: the specification, its bounds, and the texts in it."""
