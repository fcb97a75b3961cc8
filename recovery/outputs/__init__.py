"""What tasks write to their output directories: scanned, sent to the job's store, and fetched from there."""
