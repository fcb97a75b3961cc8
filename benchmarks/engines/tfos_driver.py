"""The driver of TensorFlowOnSpark, for `spark-submit`: `tfos_driver.py PIDS PROGRAM [FLAG...]`.

It runs the program as it is on four executors: a chief, a parameter server, two workers. Each writes its
process id to a file in PIDS.
"""

import importlib
import os
import runpy
import sys
from pathlib import Path
from typing import Protocol


class Context(Protocol):
    """The part of TensorFlowOnSpark's TFNodeContext that is used here."""

    job_name: str
    task_index: int


def run(argv: list[str], context: Context) -> None:
    """The "main function" that TensorFlowOnSpark calls in each task, with TF_CONFIG set."""
    pids, program, *flags = argv
    Path(pids, f"{context.job_name}-{context.task_index}").write_text(str(os.getpid()))
    sys.argv = [program, *flags]
    runpy.run_path(program, run_name="__main__")


def main() -> None:
    """Start the tasks, and wait until they have ended."""
    # Both are installed where this program runs, and nowhere else.
    spark = importlib.import_module("pyspark").SparkContext(appName="digits")
    tfos = importlib.import_module("tensorflowonspark.TFCluster")
    cluster = tfos.run(spark, run, sys.argv[1:], num_executors=4, num_ps=1, master_node="chief")
    cluster.shutdown()
    spark.stop()


if __name__ == "__main__":
    main()
