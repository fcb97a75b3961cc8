"""What runs inside a task, under the job's own interpreter: the standard library alone, Python 3.8 or newer.

The launcher loads this package under a private name, so its modules import each other relatively and
nothing of ours can stand before a module of the user's program.
"""
