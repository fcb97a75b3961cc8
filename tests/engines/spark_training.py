"""A driver of Spark for the tests: `spark_training.py MASTER STATE JOB...` runs jobs in a pool `p`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tfsup_spark import JobNotDone, TrainingPool

OPTIONS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.decommission.enabled": "true",
}


def session(master: str) -> SparkSession:
    """A Spark application."""
    builder = SparkSession.builder.appName("digits").master(master)
    for name, value in OPTIONS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def digits(spark: SparkSession) -> DataFrame:
    """The handwritten digits, in four partitions."""
    images, answers = importlib.import_module("sklearn.datasets").load_digits(return_X_y=True)
    rows = [((image / 16).tolist(), int(answer)) for image, answer in zip(images, answers, strict=True)]
    return spark.createDataFrame(rows, ["image", "digit"]).repartition(4)


def say(line: str) -> None:
    """Print a line for the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the jobs."""
    master, state, *jobs = sys.argv[1:]
    spark = session(master)
    with TrainingPool(spark, agents=3, name="p", state=state, memory="2GiB") as pool:
        for job in jobs:
            data = digits(spark) if "{data.train}" in Path(job).read_text() else None
            try:
                ended = pool.run(job, data=data)
                say(f"ended: {ended.name} {ended.phase.value} at step {ended.step}")
            except JobNotDone as error:
                say(f"not done: {error}")
            except KeyboardInterrupt:
                say("interrupted")
    spark.stop()
    say("left")


if __name__ == "__main__":
    main()
