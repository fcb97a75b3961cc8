"""The faults, a module for each part of a cluster that they strike."""
