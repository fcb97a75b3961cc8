"""A driver of Spark for the tests, which runs jobs in a pool `p`."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession

from supervisor.contract.errors import TfSupervisorError
from tfsup_spark import TrainingPool

OPTIONS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.decommission.enabled": "true",
}


def session(master: str, more: list[str]) -> SparkSession:
    """A Spark application, with more options as NAME=VALUE."""
    builder = SparkSession.builder.appName("digits").master(master)
    for name, value in {**OPTIONS, **dict(each.split("=", 1) for each in more)}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def digits(spark: SparkSession) -> DataFrame:
    """The handwritten digits, in four partitions."""
    images, answers = importlib.import_module("sklearn.datasets").load_digits(return_X_y=True)
    rows = [((image / 16).tolist(), int(answer)) for image, answer in zip(images, answers, strict=True)]
    return spark.createDataFrame(rows, ["image", "digit"]).repartition(4)


def numbers(spark: SparkSession, many: int, gate: str) -> RDD:
    """Numbers in two partitions. The second one waits until there is a file `gate`, if one is named."""

    def rows_of(index: int, values: Iterable[int]) -> Iterator[dict[str, int]]:
        while index and gate and not Path(gate).exists():
            time.sleep(0.1)
        return ({"number": value} for value in values)

    return spark.sparkContext.parallelize(range(many), 2).mapPartitionsWithIndex(rows_of)


def say(line: str) -> None:
    """Print a line for the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the jobs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("master")
    parser.add_argument("jobs", nargs="+")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--option", action="append", default=[], help="of Spark, as NAME=VALUE")
    parser.add_argument("--pool", action="append", default=[], help="of TrainingPool, as NAME=VALUE")
    parser.add_argument("--rows", type=int, help="Train on so many numbers in place of the digits.")
    parser.add_argument("--gate", default="", help="A file for which the last of these numbers wait.")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--stay", help="A file for which the application waits after its pool.")
    given = parser.parse_args()
    spark = session(given.master, given.option)
    pools = dict(each.split("=", 1) for each in given.pool)
    with TrainingPool(spark, given.agents, memory="2GiB", **pools) as pool:
        for job in given.jobs:
            rows = digits(spark) if given.rows is None else numbers(spark, given.rows, given.gate)
            data = rows if "{data.train}" in Path(job).read_text() else None
            try:
                ended = pool.run(job, data=data, resume=given.resume)
                say(f"ended: {ended.name} {ended.phase.value} at step {ended.step}")
            except TfSupervisorError as error:
                say(f"not done: {type(error).__name__}: {error}")
            except KeyboardInterrupt:
                say("interrupted")
    while given.stay and not Path(given.stay).exists():
        time.sleep(0.1)
    spark.stop()
    say("left")


if __name__ == "__main__":
    main()
