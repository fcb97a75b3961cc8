"""A plain TensorFlow server: it computes what clients place on it, for ever."""

import argparse

import tensorflow.compat.v1 as tf


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", required=True, help="comma-separated host:port of all servers")
    parser.add_argument("--index", type=int, required=True, help="which of them this one is")
    parser.add_argument("--protocol", default="grpc", help="grpc, or another that this build has")
    flags = parser.parse_args()

    cluster = tf.train.ClusterSpec({"server": flags.hosts.split(",")})
    server = tf.distribute.Server(cluster, "server", flags.index, protocol=flags.protocol)
    print(f"serving at {server.target}", flush=True)
    server.join()


if __name__ == "__main__":
    main()
