"""The real thing: TensorFlow preloaded, forked, serving on a port that the launcher holds."""

import sys
from pathlib import Path

from agent.inside import protocol
from tests.launcher.harness import Agent, launcher, of, port_of

SERVER = """
import json, os
import tensorflow as tf
from tensorflow.python.training import session_manager
spec = tf.train.ClusterSpec({"ps": ["localhost:%s" % os.environ["PORT"]]})
server = tf.distribute.Server(spec, job_name="ps", task_index=0)
with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as session:
    print("answer", session.run(tf.constant(42)))
print("poll", session_manager.SessionManager.__init__.__defaults__)
server.join()
"""


def test_a_server_comes_up_on_the_held_port_again_and_again(tmp_path: Path, free: int) -> None:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PATH": path}
    with launcher(preload=["tensorflow"], env=env) as rig, Agent(rig.socket_path) as agent:
        assert agent.expect(protocol.Warm, timeout_s=60).error is None
        port = port_of(rig.reserve(agent, "r", free, free + 9, lock_dir=str(tmp_path)))
        rig.write("prog.py", SERVER)
        for command in (
            ["python", "prog.py"],
            ["sh", "-c", "python prog.py; echo over"],
            ["python", "prog.py"],
        ):
            attempt = rig.start(agent, *command, reservation="r", env={"PORT": str(port)})
            log = rig.logged("poll", 30).decode()
            assert "answer 42" in log
            assert "30" not in log.partition("poll")[2]
            started = agent.expect(protocol.Started, of(attempt))
            assert started.warm
            agent.send(protocol.Kill(attempt))
            exited = agent.expect(protocol.Exited, of(attempt))
            assert exited.confirmed_dead
