"""What Prometheus costs the leader."""
