"""Families of saves: which files are one save, when it is finished, and whether it may be committed. Pure."""
