"""Verbs about models: versions in a job's store, and the servers that serve them."""
