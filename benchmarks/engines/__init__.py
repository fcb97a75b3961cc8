"""Training on machines of a resource manager, beside the tools that were made for it."""
