"""The throughput of data that jobs read through mounts."""
