"""Effects that need no failpoint of their own, and why. `tests/chaos/test_failpoints.py` refuses others.

An entry that fits nothing any more is refused, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos.failpoints.source import Effect


@dataclass(frozen=True, slots=True)
class Exempt:
    """Effects in `path` (a module, or a directory that ends with '/'), of these calls; all without any.

    `count`: so many there are exactly, where other calls of that name would need a failpoint; 0: any number.
    """

    path: str
    why: str
    calls: tuple[str, ...] = ()
    count: int = 0

    def fits(self, effect: Effect) -> bool:
        """Whether it speaks of this one."""
        here = effect.path == self.path or (self.path.endswith("/") and effect.path.startswith(self.path))
        return here and (not self.calls or effect.call in self.calls)


_FAKE = "stands in for the real thing, in tests and simulations"
_ITSELF = "the failpoints themselves"
_CLI = "an operator's command: whoever breaks it off sees what it has not done, and repeats it"
_POINT_INSIDE = "a function of ours: the effect and its failpoint are inside"
_POINT_OUTSIDE = "a tool: each use of it is looked at as an effect, and lies in a failpoint"
_READS = "reads alone"
_LOG = "a log file: it only grows, and nobody decides by it"
_NO_EFFECT = "changes nothing outside this process"
_REHEARSAL = "a measurement: its processes hold nothing and end with their agent"
_LOCK = "a lock's file holds nothing: the lock ends with its process"
_UNNAMED = "a file without a name: it ends with its process"
_SCRATCH = "a file of one command of openssl, in a directory that goes with the command"
_AGAIN = "made again, to the same end, whenever the daemon starts"
_BEFORE_EACH_START = "looked at and made again before each start of a task"
_OWN_END = "a process of the attempt signals another one, or itself: its launcher kills all of them"
_GUARDED = (
    "a process of one bounded child: its daemon starts it in a failpoint, and whatever ends it ends both"
)
_WISH = "a file that asks a task to save: one too many costs a save, and one too few what a save would spare"
_NEXT_LOOK = "done again, to the same end, by the next look at these outputs"

EXEMPT = (
    Exempt("supervisor/adapters/failpoints.py", _ITSELF),
    Exempt("agent/inside/failpoints.py", _ITSELF),
    Exempt("supervisor/adapters/etcd/memory.py", _FAKE),
    Exempt("supervisor/adapters/etcd/memory_store.py", _FAKE),
    Exempt("recovery/stores/memory.py", _FAKE),
    Exempt("supervisor/cli/", _CLI),
    Exempt("supervisor/engines/", _AGAIN),
    Exempt("supervisor/adapters/files/private.py", _AGAIN),
    Exempt("supervisor/adapters/certificates/issuer.py", _SCRATCH),
    Exempt("supervisor/adapters/certificates/openssl.py", _SCRATCH),
    Exempt("supervisor/api/pools.py", _POINT_INSIDE),
    Exempt("agent/logs/task_logs.py", _WISH, ("(each.reader.directory / WANTED).unlink",), 1),
    Exempt("recovery/commit/exchange.py", _CLI),
    Exempt("agent/inside/beside.py", _CLI),
    Exempt("agent/inside/image_probe.py", _CLI),
    Exempt("recovery/stores/measured.py", _POINT_INSIDE),
    Exempt("supervisor/wire/http_server.py", _NO_EFFECT, ("plain.prepare", "response.prepare")),
    Exempt("supervisor/adapters/dockerd.py", _POINT_OUTSIDE, ("client.pull",)),
    Exempt("recovery/io/files.py", _POINT_OUTSIDE),
    Exempt("recovery/io/trees.py", _POINT_OUTSIDE),
    Exempt("recovery/mount/backends/backend.py", _POINT_OUTSIDE, ("backend.create",), 1),
    Exempt("recovery/mount/backends/hdfs.py", _POINT_OUTSIDE),
    Exempt("recovery/mount/backends/local.py", _POINT_OUTSIDE),
    Exempt("recovery/stores/hdfs_client.py", _POINT_OUTSIDE),
    Exempt("recovery/stores/local_side.py", _POINT_OUTSIDE),
    Exempt("recovery/stores/user_process.py", _POINT_OUTSIDE),
    Exempt(
        "recovery/stores/user_stores.py",
        "a process for one user's stores: it ends when its daemon closes the socket, or dies",
        ("asyncio.create_subprocess_exec", "child.kill"),
    ),
    Exempt("agent/host/ownership.py", _POINT_OUTSIDE),
    Exempt("agent/code/unpack.py", _POINT_OUTSIDE),
    Exempt("agent/code/store.py", _POINT_OUTSIDE, ("remove_tree",)),
    Exempt("agent/environments/packed.py", _POINT_OUTSIDE),
    Exempt("supervisor/adapters/children/guard.py", _GUARDED),
    Exempt("supervisor/adapters/children/bounded.py", _GUARDED, ("guard.send_signal",), 1),
    Exempt("agent/runtimes/local.py", _POINT_OUTSIDE, ("os.open",), 1),
    Exempt("agent/runtimes/docker_engine.py", _POINT_OUTSIDE),
    Exempt("recovery/commit/stage.py", _POINT_OUTSIDE, ("files.move_directory",), 2),
    Exempt("agent/inside/launcher/attempt.py", _POINT_INSIDE, ("fence.kill",), 1),
    Exempt("agent/runtimes/strays.py", _POINT_INSIDE, ("fence.kill",), 1),
    Exempt("agent/inside/launcher/loop.py", _POINT_INSIDE, ("self._attempt.kill", "self._attempt.terminate")),
    Exempt("agent/operate.py", _POINT_INSIDE, ("command.kill", "self.kill")),
    Exempt("agent/runtimes/docker_images.py", _POINT_INSIDE, ("self._engine.pull",)),
    Exempt(
        "supervisor/control/services/code_uploads.py",
        _POINT_INSIDE,
        ("store.prepare", "store.write_bytes"),
        2,
    ),
    Exempt("supervisor/control/loop/code_sweep.py", _POINT_INSIDE, ("store.delete_tree",), 1),
    Exempt("recovery/mount/filesystem.py", _POINT_INSIDE, ("self._live.mkdir", "self._live.rename")),
    Exempt("recovery/mount/kernel.py", _POINT_INSIDE),
    Exempt("recovery/mount/live.py", _POINT_INSIDE, ("self.unlink",)),
    Exempt("recovery/mount/staging.py", _POINT_INSIDE, ("self._live.unlink",)),
    Exempt("supervisor/control/loop/sweep.py", _READS, ("coordination.txn",), 1),
    Exempt("agent/membership.py", _READS, ("self._coordination.txn",), 2),
    Exempt("recovery/commit/commit.py", _READS, ("self._coordination.txn",), 1),
    Exempt("supervisor/adapters/telemetry.py", _LOG),
    Exempt("supervisor/adapters/audit.py", _LOG),
    Exempt("agent/inside/launcher/pump.py", _LOG, ("os.makedirs",)),
    Exempt("agent/inside/child/stacks.py", _LOG),
    Exempt("agent/inside/launcher/surroundings.py", _LOG, ("os.open",), 1),
    Exempt("agent/runtimes/process.py", _LOG, ("(home / LOG).open",)),
    Exempt("recovery/mount/control.py", _LOG, ("log.open",)),
    Exempt("agent/inside/trainer_hook.py", _LOG),
    Exempt("agent/inside/child/saves.py", _LOG),
    Exempt("agent/inside/child/raised.py", _LOG),
    Exempt("agent/inside/child/adopt.py", _BEFORE_EACH_START),
    Exempt(
        "agent/checkpoints/adopted.py", "done again by the next life, as the job's directory is still there"
    ),
    Exempt("supervisor/adapters/files/jobfile.py", _NO_EFFECT, ("TopologicalSorter(graph).prepare",)),
    Exempt("agent/core/", _NO_EFFECT, ("work.kill",)),
    Exempt("agent/checkpoints/saver.py", _NO_EFFECT, ("site.fence",)),
    Exempt("agent/inside/child/warm.py", _NO_EFFECT, ("os.fork",), 1),
    Exempt(
        "agent/inside/child/program.py",
        "the program's own end, by the signal that it wanted",
        ("os.kill",),
        1,
    ),
    Exempt("agent/inside/shim.py", _OWN_END),
    Exempt("agent/inside/processes/zygote.py", _OWN_END, ("os.kill",)),
    Exempt("agent/inside/processes/spawn.py", _POINT_OUTSIDE, ("os.fork",), 1),
    Exempt("agent/inside/processes/peer.py", _NO_EFFECT, ("open",)),
    Exempt("agent/inside/launcher/wrapper.py", _BEFORE_EACH_START, ("os.unlink", "os.chmod")),
    Exempt("agent/inside/rehearsal.py", _REHEARSAL),
    Exempt("agent/host/kill_times.py", _REHEARSAL, ("child.kill",), 1),
    Exempt("agent/inside/launcher/ports.py", _LOCK),
    Exempt("agent/inside/launcher/reservations.py", _LOCK, ("os.makedirs",)),
    Exempt("recovery/mount/record.py", _LOCK, ("path.parent.mkdir", "os.open"), 2),
    Exempt("agent/host/task_users.py", _LOCK, ("directory.mkdir", "os.open"), 2),
    Exempt("agent/state_file.py", "room for the next record; nothing is in it", ("os.open",), 1),
    Exempt("recovery/mount/writing.py", _UNNAMED),
    Exempt(
        "recovery/stores/hdfs.py", "a probe that no listing shows, and that goes", ("self._client.create",), 1
    ),
    Exempt("agent/effects.py", _POINT_INSIDE, ("self._out.outputs.prepare",)),
    Exempt("recovery/outputs/reading.py", _NEXT_LOOK, ("target.unlink",)),
    Exempt("recovery/outputs/stored.py", _NEXT_LOOK, ("spool.mkdir", "part.touch", "os.mkdir", "os.chown")),
    Exempt("agent/main.py", _AGAIN, ("directory.mkdir", "directory.chmod")),
    Exempt("recovery/stores/hdfs.py", _AGAIN, ("self._client.mkdirs",), 2),
)


def reason(effect: Effect) -> str:
    """Why this effect needs no failpoint; empty when it does."""
    return next((each.why for each in EXEMPT if each.fits(effect)), "")
