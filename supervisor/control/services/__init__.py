"""The requests of operators: each is checked, then becomes one fenced transaction."""
