"""The metrics of a daemon: what they are, how they are collected, and how they are written."""
