"""The handwritten digits, from a DataFrame to a trained model: for spark-submit, or for a notebook, by cells.

    supervisorctl local up
    spark-submit --master spark://HOST:7077 examples/spark/digits.py

The executors' Python (PYSPARK_PYTHON) has tf-supervisor and TensorFlow. With supervisors elsewhere, give the
pool `config` and `agent_config` (docs/spark.md).
"""

# %% The data: any DataFrame. A row becomes a record, a column a feature of it.
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from tfsup_spark import TrainingPool

spark = SparkSession.builder.appName("digits").getOrCreate()
images, answers = load_digits(return_X_y=True)
rows = [((image / 16).tolist(), int(answer)) for image, answer in zip(images, answers, strict=True)]
digits = spark.createDataFrame(rows, ["image", "digit"]).repartition(8)

# %% The job: as in a job file. Its program is that of examples/digits_records, which knows nothing of Spark.
job = {
    "name": "digits_of_spark",
    "strategy": "plain",
    "command": ["python", "train.py", "--records", "{data.train}/*.tfrecord"],
    "code": {"dir": "examples/digits_records"},
    "roles": {"worker": {"count": 1}},
}

# %% Training: agents on three executors, as long as the block lasts. Failures meanwhile are recovered from.
with TrainingPool(spark, agents=3) as pool:
    ended = pool.run(job, data=digits, fresh=True)

print(
    f"{ended.name} {ended.phase.value} at step {ended.step}; its newest checkpoint is {ended.newest_commit}"
)
