"""Shared by benchmarks: systems under test, figures, waiting for a quiet machine."""
