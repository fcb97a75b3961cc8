"""The embedded cluster: etcd, supervisors and agents of one machine, kept alive by a background process."""
