"""Programs that are shipped to this node: archives fetched, unpacked without trust, kept by digest."""
