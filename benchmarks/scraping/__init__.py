"""The cost of Prometheus to the leader."""
