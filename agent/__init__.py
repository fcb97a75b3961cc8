"""The node agent: starts, watches, adopts and fences the tasks of one machine."""

import os

# With it gRPC starts threads in a child before that has executed its program. They crash launchers of another
# user than the agent: Python forks for these, where it uses vfork. gRPC reads this as it is imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
