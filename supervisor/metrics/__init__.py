"""The metrics of supervisors."""
