"""A server for a share of the client's graph. It finds its place in TF_CONFIG."""

import json
import os

import tensorflow.compat.v1 as tf


def main():
    config = json.loads(os.environ["TF_CONFIG"])
    task = config["task"]
    server = tf.distribute.Server(
        config["cluster"],
        job_name=task["type"],
        task_index=task["index"],
        protocol=os.environ.get("TFSUP_PROTOCOL", "grpc"),
    )
    print(f"mapping at {server.target}", flush=True)
    server.join()


if __name__ == "__main__":
    main()
