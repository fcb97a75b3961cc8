"""Files that people write: configuration, job files, archives of programs."""
