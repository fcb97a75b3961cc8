"""Files that a store keeps or loses: collection, leftovers, pins, claims (rule 9)."""
