"""The launcher, and what its forked child does before it is the user's program.

Both run under the job's own interpreter, with the standard library alone, Python 3.8 or newer. `launcher` is
the loop, and kills at the deadline of `deadman`; `spawn` forks the child, and `program` runs it in a warm
interpreter.

The launcher loads this package under a private name, so its modules import each other relatively and
nothing of ours can stand before a module of the user's program.
"""
