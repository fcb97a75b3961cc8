"""What chaos runs have shown, as one HTML page that needs nothing else."""
