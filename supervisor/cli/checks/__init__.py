"""The checks of `supervisorctl doctor`: each has a name, a function, and advice for a problem."""
