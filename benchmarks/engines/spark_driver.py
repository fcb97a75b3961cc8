"""`spark_driver.py MASTER STATE`: a driver of Spark with a pool of agents, until standard input ends."""

import importlib
import sys

OPTIONS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main() -> None:
    """Start the pool, and wait."""
    master, state = sys.argv[1:]
    # Installed where this program runs, and nowhere else.
    pyspark = importlib.import_module("pyspark")
    configuration = pyspark.SparkConf().setAppName("digits").setMaster(master).setAll(OPTIONS.items())
    spark = pyspark.SparkContext(conf=configuration)
    tfsup_spark = importlib.import_module("tfsup_spark")
    with tfsup_spark.TrainingPool(spark, agents=3, name="p", state=state, memory="2GiB") as pool:
        pool.start()
        sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main()
