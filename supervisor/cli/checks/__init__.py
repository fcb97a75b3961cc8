"""What `supervisorctl doctor` looks at: each check is a name, a look, and what to do when it is not well."""
