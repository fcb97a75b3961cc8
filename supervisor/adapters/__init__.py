"""The I/O that both daemons share, each piece behind a boundary of `supervisor.contract`."""
