"""Configuration files of daemons and command line: YAML in, frozen models out, errors as in job files."""
