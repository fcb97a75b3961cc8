"""tf.data's service: the dispatcher, which shares the data out, or a worker, which reads and sends its share.

The dispatcher writes down what it decides, so that one that is restarted at its address goes on with the
same jobs; trainers and data workers find it again by themselves.
"""

import argparse
import os
import pathlib

import tensorflow as tf

service = tf.data.experimental.service


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=["dispatcher", "worker"])
    parser.add_argument("--host", required=True, help="where the others reach this process")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dispatcher", help="host:port of the dispatcher, for a worker")
    flags = parser.parse_args()

    host = f"[{flags.host}]" if ":" in flags.host else flags.host  # an address of IPv6
    if flags.part == "dispatcher":
        journal = pathlib.Path(os.environ["CHECKPOINT_DIR"], "dispatcher")
        server = service.DispatchServer(
            service.DispatcherConfig(port=flags.port, work_dir=str(journal), fault_tolerant_mode=True)
        )
    else:
        server = service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=flags.dispatcher,
                worker_address=f"{host}:{flags.port}",
                port=flags.port,
                heartbeat_interval_ms=1000,
            )
        )
    print(f"{flags.part} serves at {host}:{flags.port}", flush=True)
    server.join()


if __name__ == "__main__":
    main()
