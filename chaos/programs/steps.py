"""A light training program: what TensorFlow's between-graph replicas do to each other, without TensorFlow.

The parameter server holds a global step and the generations that it went through. The chief restores it from
`$CHECKPOINT_DIR` and saves it there, in TensorFlow's bundle format; chief and workers raise it. It takes what
`$CHAOS_CONTROL/ROLE-INDEX` says as its own faults: exit, raise, hang, slow, grandchild, eat; and it fails to
start, or to restore a checkpoint, where the files `start` and `restore` there say so. Each process tells
`$STEP_LOG` what it did, by JSON lines in a file of its own (`docs/chaos.md`, "The program").
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.bundles import bundle, plain

CUDA = "CUDA_VISIBLE_DEVICES"
UINT8 = 4
RPC_TIMEOUT_S = 2.0
RECONNECT_S = 0.1
POLL_S = 0.05
KEEP = 3
EATEN_BYTES = 32 << 20


class UnavailableError(Exception):
    """TensorFlow's error in a process that loses a peer; printed under its name."""

    __module__ = "tensorflow.python.framework.errors_impl"


class DataLossError(Exception):
    """TensorFlow's error in a process that cannot restore a checkpoint; printed under its name."""

    __module__ = "tensorflow.python.framework.errors_impl"


@dataclass(slots=True)
class StepLog:
    """The log of this process: one JSON line for each event, with CLOCK_BOOTTIME in milliseconds."""

    task: str
    file: int = -1

    def __post_init__(self) -> None:
        directory = os.environ.get("STEP_LOG", "")
        if directory:
            Path(directory).mkdir(parents=True, exist_ok=True)
            name = f"{self.task.replace(':', '-')}.{time.clock_gettime_ns(time.CLOCK_BOOTTIME)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self.file = os.open(f"{directory}/{name}", flags, 0o600)

    def tell(self, kind: str, step: int, **more: object) -> None:
        """Append one line; whole, as it is one write."""
        if self.file >= 0:
            line = {
                "at_ms": time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6,
                "kind": kind,
                "task": self.task,
                "generation": int(os.environ.get("TFSUP_GENERATION", "0")),
                "attempt": os.environ.get("TFSUP_ATTEMPT", ""),
                "pid": os.getpid(),
                "step": step,
                **more,
            }
            os.write(self.file, json.dumps(line).encode() + b"\n")


@dataclass(slots=True)
class Weights:
    """The weights in the parameter server; it counts no step before a worker has set one."""

    log: StepLog
    step: int = -1
    chain: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: dict[str, object]) -> dict[str, object]:
        """One call: get, add one step, or set."""
        with self.lock:
            if request["do"] == "set":
                step, chain = request["step"], request["chain"]
                assert isinstance(step, int)
                assert isinstance(chain, list)
                self.step, self.chain = step, chain
            elif request["do"] == "add" and self.step >= 0:
                self.step += 1
            return {"step": self.step, "chain": self.chain}


class Server(socketserver.ThreadingTCPServer):
    """Answers JSON lines, on the port that the launcher holds."""

    daemon_threads = True
    allow_reuse_address = True
    allow_reuse_port = os.environ.get("TF_GRPC_REUSE_PORT") == "true"
    request_queue_size = 64

    def __init__(self, port: int, weights: Weights) -> None:
        self.weights = weights
        super().__init__(("", port), Call)


class Call(socketserver.StreamRequestHandler):
    """One connection. Its first line names the caller; any caller is answered, as by TensorFlow's servers."""

    def handle(self) -> None:
        """Answer calls until the other side hangs up."""
        assert isinstance(self.server, Server)
        weights = self.server.weights
        with suppress(OSError, ValueError):
            caller = json.loads(self.rfile.readline() or "{}")
            weights.log.tell("accepted", weights.step, **caller)
            for line in self.rfile:
                self.wfile.write(json.dumps(weights.answer(json.loads(line))).encode() + b"\n")


class Client:
    """A connection to the parameter server, made anew when it breaks."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), RPC_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rwb")
        generation = int(os.environ.get("TFSUP_GENERATION", "0"))
        self._send({"caller": os.environ.get("TFSUP_ATTEMPT", ""), "caller_generation": generation})

    def call(self, **request: object) -> tuple[int, list[int]]:
        """The step after the call, -1 when nobody has set one, and its generations. Raises OSError."""
        self._send(request)
        line = self._file.readline()
        if not line:
            raise ConnectionResetError("the parameter server hung up")
        answer = json.loads(line)
        return int(answer["step"]), list(answer["chain"])

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self._socket.close()

    def _send(self, body: dict[str, object]) -> None:
        self._file.write(json.dumps(body).encode() + b"\n")
        self._file.flush()


class Ills:
    """The faults that this process is told to have, by control files."""

    def __init__(self, task: str) -> None:
        self._directory = Path(os.environ.get("CHAOS_CONTROL", "/nowhere"))
        self._own = task.replace(":", "-")
        self._children: list[subprocess.Popen[bytes]] = []
        self._eaten: list[bytearray] = []

    def start(self, host: str) -> None:
        """End at once, where nothing works on this host."""
        order = self._read("start")
        if order and order["host"] == host:
            print("nothing works on this machine", flush=True)
            sys.exit(int(order["code"]))

    def restore(self, generation: int, step: int) -> None:
        """Raise DataLossError for the first checkpoint that comes, each time that it does, for no other."""
        order = self._read("restore")
        found = [generation, step]
        if order and order.get("refused", found) == found:
            replace(self._directory / "restore", json.dumps({**order, "refused": found}).encode())
            raise DataLossError(f"Checksum does not match: model.ckpt-{step}")

    def _read(self, name: str) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            order = json.loads((self._directory / name).read_bytes())
            assert isinstance(order, dict)
            return order
        return {}

    def suffer(self) -> None:
        """Do what the file of this task says now, if there is one."""
        order = self._read(self._own)
        if order.get("once"):
            (self._directory / self._own).unlink(missing_ok=True)
        match order.get("do"):
            case "exit":
                print("the program ends by itself", flush=True)
                # From any thread, and at once, as os.abort would.
                os._exit(int(order["code"]))
            case "raise":
                raise ValueError("told to fail")
            case "hang":
                hang_in_user_code()
            case "slow":
                time.sleep(float(order["ms"]) / 1000)
            case "grandchild":
                self._grandchild()
            case "eat":
                self._eaten.append(bytearray(b"x") * EATEN_BYTES)
            case _:
                pass  # the file was replaced by one that says nothing

    def _grandchild(self) -> None:
        """A session of its own, orphaned at once: neither PDEATHSIG nor killpg reaches it."""
        sleeper = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\ntime.sleep(3600)\n"
        self._children.append(subprocess.Popen([sys.executable, "-c", sleeper]))


def hang_in_user_code() -> None:
    """Wait for what never comes."""
    threading.Event().wait()


@dataclass(slots=True)
class Trainer:
    """Chief or worker."""

    flags: argparse.Namespace
    task: str
    address: str
    log: StepLog
    ills: Ills
    saved: int = -1
    terminated: bool = False
    kept: list[str] = field(default_factory=list)

    @property
    def leads(self) -> bool:
        """It restores and saves."""
        return self.task == "chief:0"

    def terminate(self) -> None:
        """Save, and end."""
        self.terminated = True

    def run(self) -> int:
        """Train to the last step; the exit code."""
        client: Client | None = None
        ready = False
        step, chain = -1, list[int]()
        while True:
            self.ills.suffer()
            try:
                if client is None:
                    client, ready = Client(self.address), False
                if self.leads and not ready:
                    step, chain = self._restore(client)
                    ready = True
                if self.terminated:
                    if self.leads and step >= 0:
                        self._save(step, chain)
                    return 143
                step, chain = client.call(do="add")
            except OSError as error:
                if client is not None:
                    client.close()
                    # As with TensorFlow, silence raises nothing; a connection that breaks does.
                    if not isinstance(error, TimeoutError):
                        self._perhaps_raise(error)
                client = None
                time.sleep(RECONNECT_S)
                continue
            if step >= 0:
                self._stepped(step, chain)
                if 0 < self.flags.steps <= step:
                    return 0
            time.sleep(self.flags.step_ms / 1000)

    def _perhaps_raise(self, error: OSError) -> None:
        """Some programs let TensorFlow's error through, others try again."""
        if random.random() < self.flags.dies_with_server:
            raise UnavailableError(f"From /job:ps/replica:0/task:0: {error}") from error

    def _stepped(self, step: int, chain: list[int]) -> None:
        self.log.tell("step", step)
        if step % self.flags.print_every == 0 or self.leads:
            print(f"step {step} loss {1 / (step + 1):.6f}", flush=True)
        last = 0 < self.flags.steps <= step
        if self.leads and (step >= self.saved + self.flags.save_every or last):
            self._save(step, chain)

    def _restore(self, client: Client) -> tuple[int, list[int]]:
        """Restore as TensorFlow does: the save that the `checkpoint` file names."""
        found = read_checkpoint(Path(os.environ["CHECKPOINT_DIR"]))
        generation = int(os.environ["TFSUP_GENERATION"])
        step, chain = found if found is not None else (0, [])
        if found is not None:
            self.ills.restore(chain[-1], step)
            self.saved, self.kept = step, [f"model.ckpt-{step}"]
        self.log.tell("restored", step if found is not None else -1, chain=chain)
        return client.call(do="set", step=step, chain=[*chain, generation])

    def _save(self, step: int, chain: list[int]) -> None:
        """Data, index, state file; each by a rename, as TF1's Saver does."""
        directory = Path(os.environ["CHECKPOINT_DIR"])
        prefix = f"model.ckpt-{step}"
        body = json.dumps({"step": step, "chain": chain}).encode()
        weights = random.Random(step).randbytes(self.flags.bytes)
        tensors = {b"state": plain(UINT8, [len(body)], body), b"w": plain(UINT8, [len(weights)], weights)}
        for name, content in bundle(prefix, [tensors]).items():
            replace(directory / name, content)
        self.kept = [*self.kept, prefix][-KEEP:]
        lines = [f'model_checkpoint_path: "{prefix}"']
        lines += [f'all_model_checkpoint_paths: "{each}"' for each in self.kept]
        replace(directory / "checkpoint", ("\n".join(lines) + "\n").encode())
        for path in directory.glob("model.ckpt-*"):
            if path.name.rpartition(".")[0] not in self.kept:
                path.unlink(missing_ok=True)
        self.saved = step
        self.log.tell("saved", step, chain=chain)


def read_checkpoint(directory: Path) -> tuple[int, list[int]] | None:
    """Step and generations of the newest checkpoint; None without one."""
    try:
        prefix = (directory / "checkpoint").read_text().split('"')[1]
    except FileNotFoundError:
        return None
    data = (directory / f"{prefix}.data-00000-of-00001").read_bytes()
    body, _ = json.JSONDecoder().raw_decode(data.decode("latin-1"))
    return int(body["step"]), [int(each) for each in body["chain"]]


def replace(path: Path, content: bytes) -> None:
    """A new file under this name, in one step."""
    fresh = path.with_name(f"{path.name}.tmp")
    fresh.write_bytes(content)
    fresh.replace(path)


def serve(port: int, log: StepLog, ills: Ills) -> int:
    """A parameter server, until it is killed."""
    server = Server(port, Weights(log))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        ills.suffer()
        time.sleep(POLL_S)


def evaluate(log: StepLog, ills: Ills) -> int:
    """Read each checkpoint that comes, until killed."""
    seen = -1
    while True:
        ills.suffer()
        with suppress(OSError, ValueError):
            found = read_checkpoint(Path(os.environ["CHECKPOINT_DIR"]))
            if found is not None and found[0] != seen:
                seen = found[0]
                log.tell("seen", seen, chain=found[1])
                print(f"evaluated step {seen}", flush=True)
        time.sleep(POLL_S)


def main() -> int:
    """Run the task that TF_CONFIG names; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=0, help="stop at this global step; 0: never")
    parser.add_argument("--step-ms", type=float, default=40.0)
    parser.add_argument("--save-every", type=int, default=40, help="global steps between checkpoints")
    parser.add_argument("--print-every", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=65536, help="size of a checkpoint's weights")
    parser.add_argument("--dies-with-server", type=float, default=0.5, help="probability")
    flags = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    role, index = config["task"]["type"], int(config["task"]["index"])
    task = f"{role}:{index}"
    log, ills = StepLog(task), Ills(task)
    devices = {"gpus": os.environ[CUDA]} if CUDA in os.environ else {}
    log.tell("start", int(os.environ.get("TFSUP_BASE_STEP", "-1")), **devices)
    addresses = config["cluster"].get(role, [])
    if index < len(addresses):
        ills.start(addresses[index].rpartition(":")[0])
    if role == "ps":
        return serve(int(addresses[index].rpartition(":")[2]), log, ills)
    if role == "evaluator":
        return evaluate(log, ills)
    trainer = Trainer(flags, task, config["cluster"]["ps"][0], log, ills)
    signal.signal(signal.SIGTERM, lambda *_: trainer.terminate())
    code = trainer.run()
    log.tell("end", -1)
    return code


if __name__ == "__main__":
    sys.exit(main())
