"""NVML, in a child process that may hang or end."""
