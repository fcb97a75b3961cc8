"""Tests that break things on purpose; never imported by the product."""
