"""Saves a checkpoint of every kind with TensorFlow, and writes down what TensorFlow then reads in each.

Arguments: directory, MiB of the huge tensor, kinds to make. Each gets a directory of its own; `expected.json`
maps that of each bundle to its prefix and, by tensor, to [DataType, shape, crc32c of its value or None].
"""

import importlib
import json
import pathlib
import socket
import sys
from collections.abc import Callable, Mapping

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from chaos.bundles import strings

tf = importlib.import_module("tensorflow")  # it ships without types
tf1 = tf.compat.v1

ROOT, HUGE_MIB, KINDS = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
RANDOM = np.random.default_rng(7)
NUMERIC = (
    "bfloat16 half float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 complex64 complex128"
)


def prefix_in(kind: str, name: str) -> str:
    directory = ROOT / kind
    directory.mkdir(parents=True)
    return str(directory / name)


def values(*shape: int) -> NDArray[np.float32]:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def raw(kind: str, tensors: Mapping[str, object], slices: Mapping[str, str] | None = None) -> None:
    """A checkpoint that the op writes itself; the name of a tensor ends at a `#`."""
    tf.raw_ops.SaveV2(
        prefix=prefix_in(kind, "m-1"),
        tensor_names=[name.partition("#")[0] for name in tensors],
        shape_and_slices=[(slices or {}).get(name, "") for name in tensors],
        tensors=list(tensors.values()),
    )


def types() -> None:
    found = {name: tf.cast(10 * values(3, 5), name) for name in NUMERIC.split()}
    found |= {name: tf.cast(values(7), name) for name in ("float8_e5m2", "float8_e4m3fn")}
    found |= {name: tf.cast(tf.constant([[1, 2, 3]]), name) for name in ("int4", "uint4")}
    found["qint8"] = tf.bitcast(tf.constant([1, 2], tf.int8), tf.qint8)
    raw("types", {**found, "bool": tf.constant([True, False, True])})


def shapes() -> None:
    raw("small", {"w": values(5, 3), "s": tf.constant(["ab", "", "x" * 200]), "n": tf.constant(3)})
    empty = {"e": tf.zeros([0, 4]), "f": tf.zeros([3, 0], tf.int64), "s": tf.zeros([0], tf.string)}
    raw("empty", {**empty, "x": tf.ones([2])})
    raw("only-empty", {"e": tf.zeros([0])})
    raw("many", {f"layer_{n:03d}/kernel": values(n % 7 + 1, 11) for n in range(200)})
    raw("blocks", {f"{n * 7919 % 3000:05d}/{'deep/' * 40}": tf.constant([n]) for n in range(3000)})
    raw("names", {"über/größe": tf.constant(1.0), "a b:c[d]": tf.constant(2.0), "x" * 3000: tf.constant(3.0)})
    raw("huge", {"huge": tf.random.uniform([HUGE_MIB << 18]), "after": tf.constant([1, 2, 3], tf.int8)})


def texts() -> None:
    mixed = ["", "a", "é" * 70, "y" * 130, "z" * 20_000] * 20_000
    short = tf.constant([f"t{n}" for n in range(100_000)])
    raw(
        "strings",
        {"short": short, "long": tf.constant(mixed[:200]), "mixed": tf.constant([t[:150] for t in mixed])},
    )


def slices() -> None:
    whole = values(6, 4)
    raw(
        "slices",
        {
            "v#0": whole[:2],
            "v#1": whole[2:, :1],
            "v#2": whole[2:, 1:],
            "far": tf.constant([5.0]),
            "all": whole,
        },
        {
            "v#0": "6 4 0,2:-",
            "v#1": "6 4 2,4:0,1",
            "v#2": "6 4 2,4:1,3",
            "far": "100000 70,1",
            "all": "6 4 0,6:0,4",
        },
    )


def keras() -> None:
    model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(8), tf.keras.layers.Dense(2)])
    model.compile("adam", "mse")
    model.fit(values(8, 4), values(8, 2), verbose=0)
    model.save_weights(prefix_in("keras-weights", "m.weights.h5"))
    model.save(prefix_in("keras", "m.keras"))
    model.export(str(ROOT / "saved-model" / "export"), verbose=False)
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(tf.constant(["a", "bb"]), tf.constant([1, 2], tf.int64))
    step = tf.Variable(7, dtype=tf.int64)
    tf.train.Checkpoint(model=model, step=step, table=table).save(prefix_in("tf2", "ckpt"))
    whole = tf.train.Checkpoint(wide=tf.Variable(values(60, 7)), texts=tf.Variable(["x", "yy"]))
    limit = tf.train.experimental.MaxShardSizePolicy(max_shard_size=800)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=limit)
    whole.save(prefix_in("max-shard", "ckpt"), options=options)
    numbers = iter(tf.data.Dataset.range(100).shuffle(10).batch(3))
    next(numbers)
    tf.train.Checkpoint(iterator=numbers).save(prefix_in("iterator", "ckpt"))


def tf1_saver() -> None:
    with tf.Graph().as_default():
        weights = tf1.get_variable("weights", shape=[30, 4], initializer=tf1.ones_initializer())
        normal = tf1.random_normal_initializer(seed=1)
        with tf1.variable_scope("parts", partitioner=tf1.fixed_size_partitioner(3)):
            divided = tf1.get_variable("divided", shape=[10, 4], initializer=normal)
        loss = tf.reduce_sum(weights) + tf.reduce_sum(tf.convert_to_tensor(divided))
        train = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        step = tf1.train.get_or_create_global_step()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(train)
            tf1.train.Saver().save(session, prefix_in("tf1", "model.ckpt"), global_step=step)


def sharded() -> None:
    """Two parameter servers and a worker, in this process; each saves the variables that it holds."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    hosts = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    spec = {"ps": hosts[:2], "worker": hosts[2:]}
    servers = [tf1.train.Server(spec, job, n) for job, n in (("ps", 0), ("ps", 1), ("worker", 0))]
    with tf.Graph().as_default():
        with tf1.device(tf1.train.replica_device_setter(cluster=spec)):
            normal = tf1.random_normal_initializer(seed=2)
            for n in range(5):
                tf1.get_variable(f"v{n}", shape=[n + 1, 3], initializer=normal)
            with tf1.variable_scope("parts", partitioner=tf1.fixed_size_partitioner(4)):
                tf1.get_variable("divided", shape=[9, 2], initializer=normal)
        with tf1.Session(servers[2].target) as session:
            session.run(tf1.global_variables_initializer())
            tf1.train.Saver(sharded=True).save(session, prefix_in("sharded", "model.ckpt"), global_step=40)


def crc_of(array: object) -> int:
    """The checksum of a value as TensorFlow gives it, by the rules for its type."""
    found = np.asarray(array, dtype=object if isinstance(array, bytes) else None)
    if found.dtype == object:
        return strings(found.shape, found.ravel().tolist()).crc32c
    return int(google_crc32c.value(found.tobytes()))


def described(prefix: str) -> Mapping[str, tuple[int, list[int], int | None]]:
    reader = tf.train.load_checkpoint(prefix)
    kinds = reader.get_variable_to_dtype_map()
    found = {}
    for name, shape in reader.get_variable_to_shape_map().items():
        partly = name == "far" or kinds[name] == tf.variant
        crc = None if partly else crc_of(reader.get_tensor(name))
        found[name] = (kinds[name].as_datatype_enum, shape, crc)
    return found


MAKERS: Mapping[str, Callable[[], None]] = {
    maker.__name__: maker for maker in (types, shapes, texts, slices, keras, tf1_saver, sharded)
}
for kind in KINDS or MAKERS:
    MAKERS[kind]()
expected = {}
for index in sorted(ROOT.rglob("*.index")):
    name = index.name.removesuffix(".index")
    expected[str(index.parent.relative_to(ROOT))] = (name, described(f"{index.parent}/{name}"))
(ROOT / "expected.json").write_text(json.dumps({"version": tf.__version__, "bundles": expected}))
