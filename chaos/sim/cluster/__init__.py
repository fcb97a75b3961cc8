"""The simulated cluster: virtual time, machines, etcd, the network, and the programs that train on it."""
