"""The gRPC API: what the command line asks of the leader, and the heartbeat link of the agents."""
