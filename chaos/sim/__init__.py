"""The deterministic simulator: the real daemons over in-memory adapters, on a virtual clock."""
