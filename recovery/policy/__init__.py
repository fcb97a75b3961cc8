"""How a failure becomes a restart: what happened, whose fault it was, how much restarts, and whether it may.

Everything here is pure.
"""
