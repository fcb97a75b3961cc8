"""Children that are bounded: in time, in output, in memory, and in what they leave behind."""
