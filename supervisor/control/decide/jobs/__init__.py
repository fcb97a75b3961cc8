"""The life of a job: admission, generations, restarts, moves, its end and its deletion."""
