"""Training on the executors of a Spark application (docs/spark.md).

    from tfsup_spark import TrainingPool

    with TrainingPool(spark, agents=3) as pool:
        pool.run("job.yaml")

It is outside the package `supervisor`, as `tfsup` is and for the same reason.
"""

from __future__ import annotations

import tfsup

try:
    from supervisor.cli.pool.training import JobNotDone, TrainingPool
except ModuleNotFoundError as error:
    if problem := tfsup.check_identity():
        raise ImportError(problem) from error
    raise

__all__ = ["JobNotDone", "TrainingPool"]
