"""The gRPC API: the service of the leader for the command line, and the heartbeat link of the agents."""
