"""What is wrong with a job, and what it needs."""
