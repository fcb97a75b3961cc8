"""From a failure to a restart: its cause, the node or checkpoint to blame, the scope of the restart, the
budget.

Everything here is pure.
"""
