"""What a store may lose, and what it keeps: collection, leftovers, pins, claims (rule 9)."""
