"""The leader at work: the loop, the transactions, and the files that it keeps."""
