"""The neutral floor: the values, keys and boundaries that supervisor, agent and recovery agree on.

Everything here is pure and imports the standard library alone.
"""
