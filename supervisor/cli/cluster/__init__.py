"""Verbs about the machines of a cluster, their certificates and images."""
