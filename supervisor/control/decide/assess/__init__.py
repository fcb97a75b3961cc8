"""The assessment of a job: its failures, hangs and progress, and the restart that it needs."""
