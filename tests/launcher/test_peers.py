"""The chief of style `coordinator` takes the new address of a worker while closures are pending."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.inside import protocol
from tests.launcher.harness import Agent, Rig, launcher, wait_for
from tests.support.herd import Herd, addresses, herd

ENV = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",
    "PATH": "/usr/bin:/bin",
    "TF_USE_LEGACY_KERAS": "1",
}

SERVES = """
import json, os
import tensorflow as tf
told = json.loads(os.environ["TF_CONFIG"])
task, cluster = told["task"], tf.train.ClusterSpec(told["cluster"])
server = tf.distribute.Server(cluster, job_name=task["type"], task_index=task["index"])
print("up", flush=True)
server.join()
"""

COUNTS = """
import collections, json, os, sys, threading, time
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
done, execute = collections.Counter(), cluster_coordinator.Closure.execute_on
def counted(closure, worker):
    execute(closure, worker)
    done[worker.worker_index] += type(closure) is cluster_coordinator.Closure
cluster_coordinator.Closure.execute_on = counted
from tensorflow.python import pywrap_tfe
update = pywrap_tfe.TFE_ContextUpdateServerDef
def told(*arguments):
    print("renews its view", flush=True)
    try:
        return update(*arguments)
    finally:
        print("has renewed it, or failed", flush=True)
pywrap_tfe.TFE_ContextUpdateServerDef = told
strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
scheduled, last, gap = 0, time.monotonic(), 0
def tell(more):
    global scheduled, last, gap
    scheduled += more
    gap, last = max(gap, time.monotonic() - last), time.monotonic()
    print("scheduled %d done %s gap %.3f" % (scheduled, dict(done), gap), flush=True)
def end(steps):
    print("ends with %d of %d, TF_CONFIG %s" % (steps, scheduled, os.environ["TF_CONFIG"]), flush=True)
"""

LOOP = (
    COUNTS
    + """
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    n = tf.Variable(0, dtype=tf.int64)
    big = tf.Variable(tf.random.normal([100, 100]))
data = iter(coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(10**6).repeat()))
@tf.function
def step(data):
    x = big.read_value() + tf.cast(next(data), tf.float32)
    for _ in tf.range(10):
        x = tf.matmul(x, x) * 1e-3
    n.assign_add(1)
    return tf.reduce_sum(x)
while not os.path.exists(os.environ["STOP"]):
    while os.path.exists(os.environ["PAUSE"]):
        print("pauses", flush=True)
        time.sleep(0.05)
    results = [coordinator.schedule(step, args=(data,)) for _ in range(20)]
    coordinator.join()
    assert all(each.fetch() is not None for each in results)
    tell(20)
end(n.numpy())
"""
)

MAKES = (
    COUNTS
    + """
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
made, more = [threading.Event() for _ in range(3)], []
seven = tf.function(lambda: tf.constant(7)).get_concrete_function()
# TensorFlow tells all workers of what runs for the first time, and fails where one leaves just then.
assert coordinator._create_per_worker_resources(seven)._values[0].fetch() == 7
build = cluster_coordinator.ResourceClosure.build_output_remote_value
def fetched(value):
    try:
        return int(value.fetch())
    except tf.errors.CancelledError:
        return "cancelled"
def built(closure):
    index = getattr(closure, "tag", 0)
    while index == 2 and len(coordinator._cluster.workers) < 3:
        time.sleep(0.01)  # its thread begins before it is in the list
    if index == 2 and not more:
        more.append(coordinator._create_per_worker_resources(seven))
    made[index].set()
    print("makes on", index, flush=True)
    while index and not made[3 - index].wait(1):
        pass  # both make it at the same time
    while index == 2 and len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]) > 2:
        time.sleep(0.01)
    return build(closure)
cluster_coordinator.ResourceClosure.build_output_remote_value = built
renewed = coordinator._cluster.failure_handler._worker_up_cond
tell_all = renewed.notify_all
def told_late():
    time.sleep(0.3)  # the next size comes while TensorFlow does not take this one for done
    tell_all()
renewed.notify_all = told_late
with strategy.scope():
    n = tf.Variable(0, dtype=tf.int64)
data = iter(coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(10**6).repeat()))
@tf.function
def step(data):
    next(data)
    n.assign_add(1)
while not os.path.exists(os.environ["STOP"]):
    steps = 20
    for _ in range(steps):
        coordinator.schedule(step, args=(data,))
    while not coordinator.done():
        time.sleep(0.01)
        if made[1].is_set() != made[2].is_set():
            # It waits for the other, and all closures may have gone to the first worker.
            coordinator.schedule(step, args=(data,))
            steps += 1
    if more:
        print("fetched", [fetched(each) for each in more[0]._values], flush=True)
    tell(steps)
end(n.numpy())
"""
)

FIT = (
    COUNTS
    + """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.01), loss="mse")
class Tells(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        tell(20)
        self.model.stop_training = os.path.exists(os.environ["STOP"])
def data(context):
    x = tf.random.uniform([64, 1])
    return tf.data.Dataset.from_tensor_slices((x, 3 * x)).repeat().batch(8)
made = tf.keras.utils.experimental.DatasetCreator(data)
model.fit(made, epochs=10**6, steps_per_epoch=20, callbacks=[Tells()], verbose=0)
end(model.optimizer.iterations.numpy())
"""
)


Cluster = dict[str, list[str]]
Around = tuple[Herd, Rig, Agent]
"""What the tests share, as each process that imports TensorFlow takes seconds for it."""


@pytest.fixture(scope="module")
def imported() -> Iterator[Around]:
    with (
        launcher(preload=["tensorflow"], env=ENV) as rig,
        Agent(rig.socket_path) as agent,
        herd(ENV) as tasks,
    ):
        agent.expect(protocol.Warm, timeout_s=60)
        yield tasks, rig, agent


@pytest.fixture
def around(imported: Around) -> Iterator[Around]:
    """Without the tasks of the test before."""
    tasks, _, agent = imported
    yield imported
    tasks.close()
    ended = {each.attempt for each in agent.all(protocol.Exited)}
    for each in agent.all(protocol.Started):
        if each.attempt not in ended:
            agent.send(protocol.Kill(each.attempt))


def environment(directory: Path, cluster: Cluster, role: str, index: int) -> dict[str, str]:
    """The settings of a task. The chief ends, and pauses, while a file is in `directory`."""
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}}),
        "TF_GRPC_REUSE_PORT": "true",
        "STOP": str(directory / "stop"),
        "PAUSE": str(directory / "pause"),
    }


def closures(log: str) -> tuple[int, int]:
    """The closures that each worker has done, as the chief tells."""
    found = re.findall(r"done \{(.*)\}", log)
    each = dict(re.findall(r"(\d): (\d+)", found[-1])) if found else {}
    return int(each.get("0", 0)), int(each.get("1", 0))


def renews(log: bytes) -> bool:
    """Whether the chief is inside a call that renews its view of the cluster."""
    return log.count(b"renews its view") > log.count(b"has renewed it, or failed")


def connect_and_answer_nothing(address: str, kept: ExitStack) -> None:
    """Listen at `address` while `kept` is open. Returns once TensorFlow has connected, and speaks."""
    host, _, port = address.rpartition(":")
    listener = kept.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, int(port)))
    listener.listen()
    listener.settimeout(60)
    spoken = b""
    while spoken != b"PRI":  # what only looks whether somebody listens says nothing
        spoken = kept.enter_context(listener.accept()[0]).recv(3)


@pytest.mark.parametrize(
    ("way", "program"),
    [
        ("deaf", LOOP),
        pytest.param("killed", LOOP, marks=pytest.mark.slow),
        pytest.param("silent", LOOP, marks=pytest.mark.slow),
        pytest.param("killed", FIT, marks=pytest.mark.slow),
        pytest.param("silent", FIT, marks=pytest.mark.slow),
    ],
    ids=["deaf-loop", "killed-loop", "silent-loop", "killed-fit", "silent-fit"],
)
def test_a_chief_goes_on_with_a_worker_that_has_moved(
    way: str, program: str, around: Around, tmp_path: Path
) -> None:
    """`deaf`: its address accepts connections after its death, and TensorFlow calls it and gets no answer."""
    tasks, rig, agent = around
    with (
        ExitStack() as kept,
        addresses("ps", "chief", "worker", "former", "new") as at,
        launcher(preload=["tensorflow"], env=ENV) as elsewhere,
        Agent(elsewhere.socket_path) as other,
    ):
        cluster = {"chief": [at["chief"]], "ps": [at["ps"]], "worker": [at["former"], at["worker"]]}
        moved = {**cluster, "worker": [at["new"], at["worker"]]}

        def env(cluster: Cluster, role: str, index: int) -> dict[str, str]:
            return environment(tmp_path, cluster, role, index)

        def done() -> tuple[int, int]:
            return closures(rig.log().decode())

        for name, role, index in (("ps", "ps", 0), ("former", "worker", 0), ("worker", "worker", 1)):
            tasks.start(name, SERVES, env=env(cluster, role, index))
        rig.write("prog.py", program)
        chief = rig.start(agent, "python", "prog.py", env=env(cluster, "chief", 0))

        rig.logged("scheduled", 60)
        wait_for("closures on both", lambda: min(done()) > 20, 60)
        tasks.signal("former", signal.SIGSTOP if way == "silent" else signal.SIGKILL)
        before = done()
        if way != "silent":
            wait_for("closures on the other after the death", lambda: done()[1] > before[1] + 40)
        if way == "deaf":
            connect_and_answer_nothing(at["former"], kept)
            wait_for("a call that renews the view", lambda: renews(rig.log()))
        agent.send(protocol.Peers(chief, moved))
        if way == "deaf":
            # TensorFlow's own attempt to connect takes 20 s.
            wait_for("an end of the call to the former address", lambda: not renews(rig.log()), 10)
        wait_for("closures on the other since it was told", lambda: done()[1] > before[1] + 80)
        elsewhere.write("prog.py", SERVES)
        other.expect(protocol.Warm, timeout_s=60)
        elsewhere.start(other, "python", "prog.py", env=env(moved, "worker", 0), joins=True)
        wait_for("closures on the moved one", lambda: done()[0] > before[0] + 40)
        agent.send(protocol.Peers(chief, moved))
        (tmp_path / "stop").touch()
        exited = agent.expect(protocol.Exited, lambda each: each.attempt == chief)
        assert exited.code == 0, rig.log()
        ends = re.findall(r"ends with (\d+) of (\d+), TF_CONFIG (.*)", rig.log().decode())
        assert 0 <= int(ends[0][0]) - int(ends[0][1]) <= 1, "the closure that was cut off may count twice"
        assert json.loads(ends[0][2])["cluster"] == moved
        assert chief not in {each.attempt for each in agent.all(protocol.PeersFailed)}


@pytest.mark.parametrize("way", ["busy", "idle"])
def test_a_chief_goes_on_without_a_worker_that_left_and_with_one_in_its_place(
    way: str, around: Around, tmp_path: Path
) -> None:
    """`idle`: it has no closure for the worker until another has come."""
    tasks, rig, agent = around
    pause = tmp_path / "pause"
    with addresses("ps", "chief", "worker", "former", "new") as at:
        fewer = {"chief": [at["chief"]], "ps": [at["ps"]], "worker": [at["worker"]]}
        before, after = ({**fewer, "worker": [at["worker"], at[each]]} for each in ("former", "new"))
        for name, role, index in (("ps", "ps", 0), ("worker", "worker", 0), ("former", "worker", 1)):
            tasks.start(name, SERVES, env=environment(tmp_path, before, role, index))
        rig.write("prog.py", LOOP)
        chief = rig.start(agent, "python", "prog.py", env=environment(tmp_path, before, "chief", 0))

        def until_both_did(more: int) -> None:
            did = closures(rig.log().decode())
            both = "closures on both"
            wait_for(both, lambda: min(map(int.__sub__, closures(rig.log().decode()), did)) > more, 60)

        rig.logged("scheduled", 60)
        until_both_did(20)
        if way == "idle":
            pause.touch()
            rig.logged("pauses")
        tasks.signal("former", signal.SIGKILL)
        agent.send(protocol.Peers(chief, fewer))
        if way == "busy":
            did = closures(rig.log().decode())[0]
            wait_for("closures without the former", lambda: closures(rig.log().decode())[0] > did + 80)
        tasks.start("new", SERVES, env=environment(tmp_path, after, "worker", 1))
        tasks.logged("new", "up")
        agent.send(protocol.Peers(chief, after))
        pause.unlink(missing_ok=True)
        until_both_did(20)
        tasks.signal("new", signal.SIGKILL)
        agent.send(protocol.Peers(chief, fewer))
        did = closures(rig.log().decode())[0]
        wait_for("closures without the new one", lambda: closures(rig.log().decode())[0] > did + 40)
        tasks.signal("worker", signal.SIGKILL)
        tasks.start("again", SERVES, env=environment(tmp_path, fewer, "worker", 0))
        tasks.logged("again", "up")
        did = closures(rig.log().decode())[0]
        wait_for("closures on the restarted one", lambda: closures(rig.log().decode())[0] > did + 40)
        (tmp_path / "stop").touch()
        exited = agent.expect(protocol.Exited, lambda each: each.attempt == chief)
        assert exited.code == 0, rig.log()
        ends = re.findall(r"ends with (\d+) of (\d+), TF_CONFIG (.*)", rig.log().decode())
        assert 0 <= int(ends[0][0]) - int(ends[0][1]) <= 3, "the closures that were cut off may count twice"
        assert json.loads(ends[0][2])["cluster"] == fewer
        assert chief not in {each.attempt for each in agent.all(protocol.PeersFailed)}


def test_a_worker_that_leaves_while_it_makes_what_a_closure_needs_holds_up_no_closure(
    around: Around, tmp_path: Path
) -> None:
    tasks, rig, agent = around
    with addresses("ps", "chief", "w0", "w1", "w2") as at:
        workers = [at["w0"], at["w1"], at["w2"]]
        sizes = {
            size: {"chief": [at["chief"]], "ps": [at["ps"]], "worker": workers[:size]} for size in (1, 2, 3)
        }
        for name, role, index in (
            ("ps", "ps", 0),
            ("w0", "worker", 0),
            ("w1", "worker", 1),
            ("w2", "worker", 2),
        ):
            tasks.start(name, SERVES, env=environment(tmp_path, sizes[3], role, index))
        rig.write("prog.py", MAKES)
        chief = rig.start(agent, "python", "prog.py", env=environment(tmp_path, sizes[1], "chief", 0))
        rig.logged("scheduled", 60)
        agent.send(protocol.Peers(chief, sizes[3]))
        rig.logged("makes on 1", 60)
        rig.logged("makes on 2", 60)
        tasks.signal("w2", signal.SIGKILL)
        agent.send(protocol.Peers(chief, sizes[2]))
        did = closures(rig.log().decode())[1]
        wait_for("closures on the one that stayed", lambda: closures(rig.log().decode())[1] > did + 20, 60)
        (tmp_path / "stop").touch()
        exited = agent.expect(protocol.Exited, lambda each: each.attempt == chief)
        assert exited.code == 0, rig.log()
        ends = re.findall(r"ends with (\d+) of (\d+)", rig.log().decode())
        assert "fetched [7, 7, 'cancelled']" in rig.log().decode()
        assert ends[0][0] == ends[0][1], "nothing was sent to the worker that left"
        assert chief not in {each.attempt for each in agent.all(protocol.PeersFailed)}
