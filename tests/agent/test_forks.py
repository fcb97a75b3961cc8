"""gRPC does nothing in the children of an agent."""

from __future__ import annotations

import subprocess
import sys

FORKS = """
import agent, asyncio, os, grpc

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

async def main():
    channel = grpc.aio.insecure_channel("127.0.0.1:1")
    while channel.get_state(try_to_connect=True) is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
        await asyncio.sleep(0.01)
    print([await asyncio.to_thread(fork) for _ in range(20)], flush=True)
    os._exit(0)

asyncio.run(main())
"""


def test_a_fork_with_open_connections_has_no_handlers_of_grpc() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{[0] * 20}\n", "")
