"""The state file: its content, and what a successor makes of it (rule 12)."""
