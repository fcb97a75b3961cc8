"""The GPUs of a node: their health, folded from the reports of NVML, and the report to the leader."""
