"""`supervisorctl`: one module per group of verbs, each imported only when its verb is used."""
