"""The forked child up to the point where it is the user's program, in an interpreter that is warm already."""
