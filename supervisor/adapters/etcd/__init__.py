"""etcd, and its in-memory counterpart: clients, election, mirrors."""
