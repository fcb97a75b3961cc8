"""Families of saves: the files of a save, the moment at which it is finished, and the rule for its commit.

Pure.
"""
