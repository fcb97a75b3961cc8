"""Runtimes: ways to start launchers, behind the `Runtime` boundary."""
