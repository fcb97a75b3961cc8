"""z = (x - 8) * (x + 1) for x = 1, 2, 3, ..., where one server subtracts and the other adds.

The servers know nothing of the graph: the client builds it, says with `tf.device` what is computed where, and
sends it through the first server's address.
"""

import argparse
import time

import tensorflow.compat.v1 as tf


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", required=True, help="comma-separated host:port of the servers")
    parser.add_argument("--protocol", default="grpc", help="the servers' protocol")
    parser.add_argument("--steps", type=int, default=10, help="how many values of x")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each")
    flags = parser.parse_args()
    tf.disable_eager_execution()

    x = tf.placeholder(tf.int64, [])
    with tf.device("/job:server/task:0"):
        low = x - 8
    with tf.device("/job:server/task:1"):
        high = x + 1
        z = low * high

    total = 0
    first_host = flags.hosts.split(",")[0]
    with tf.Session(f"{flags.protocol}://{first_host}") as session:
        for step in range(1, flags.steps + 1):
            value = session.run(z, {x: step})
            total += int(value)
            print(f"step {step}: z({step}) = {value}", flush=True)
            time.sleep(flags.pause_ms / 1000)
    print(f"the sum of z(1) to z({flags.steps}) is {total}", flush=True)


if __name__ == "__main__":
    main()
