"""The launcher, and its forked child up to the point where it is the user's program.

Both run under the job's own interpreter, with the standard library alone, Python 3.8 or newer. The loop of
`launcher/` kills at the deadline of `deadman`. `processes/` forks the child, weighs it and kills it. `child/`
runs the program in a warm interpreter. Each of the three imports from those named after it alone.

Files that are started or imported by their path, or copied, lie directly here: `__main__`, `image_probe`,
`shim`, `trainer_hook`.

The launcher loads this package under a private name, so its modules import each other relatively and
nothing of ours can stand before a module of the user's program.
"""
