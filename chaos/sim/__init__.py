"""The deterministic simulator: the real daemons over in-memory adapters, on a virtual clock.

Real: `ControlDaemon`, `AgentDaemon`, the commits of `NodeCheckpoints`, the messages of launchers and their
`DeadMan`. Modelled: etcd, stores, the network, programs, and the launcher itself (`cluster.launcher`). Left
out: gRPC, certificates, processes, docker, HDFS and TensorFlow.

`cluster/` is the simulated cluster, `trouble/` breaks it, `promises/` checks it. A run brings them together.
"""
