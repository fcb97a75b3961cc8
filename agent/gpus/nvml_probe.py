"""The watch over the GPUs: a child process that calls NVML, with a deadline for each sign of life.

After a hang or crash of the driver the child is killed and started anew, with back-off. The GPUs are unknown
once NVML has been silent for the patience, and known again at the next look.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from agent.boundaries import Post
from agent.core.events import GpusSeen
from agent.core.gpus.health import Sight
from agent.settings import GpuSettings
from supervisor.adapters.backoff import Backoff
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import IncompatibleRecord

DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
NO_DRIVER = "no NVIDIA driver here"
NO_GPU = "none"
"""The name of no GPU, which the child is given in place of an empty list."""
LOOK_FOR_DRIVER_S = 10.0
FIRST_LOOK_S = 15.0
"""Seconds for the first look: nvmlInit wakes all GPUs of a machine whose driver does not stay loaded."""
MAX_LINE_BYTES = 1 << 20
STEADY_S = 10.0
"""Seconds. A child that fails later than this is started anew at once; earlier failures lead to growing
pauses."""
MOST_UNDEAD = 3
"""Most children that hang in the driver, so that SIGKILL does not end them. With so many no more are
started."""


class NvmlGpus:
    """`Gpus` by a child process.

    `present` returns the reason why there is no driver; empty if there is one.
    """

    def __init__(self, settings: GpuSettings, sink: Logger, present: Callable[[], str] | None = None) -> None:
        self._settings = settings
        self._sink = sink
        self._absent = present or (lambda: "" if settings.library else _no_driver())
        self._why = "NVML has not answered yet"
        self._told = ""
        self._kernel = -1
        self._due_s = 0.0
        self._undead: list[asyncio.subprocess.Process] = []
        self._child: asyncio.subprocess.Process | None = None

    async def run(self, post: Post) -> None:
        """Post the looks of the children, and their failures once the patience is over."""
        self._be_patient()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lose_patience(post))
            group.create_task(self._keep_asking(post))

    def look(self) -> None:
        """Ask the child for a look."""
        pipe = self._child.stdin if self._child is not None else None
        if pipe is not None and not pipe.is_closing() and not pipe.transport.get_write_buffer_size():
            pipe.write(b"\n")

    async def _keep_asking(self, post: Post) -> NoReturn:
        backoff = Backoff(100, 30_000)
        while True:
            absent = self._absent()
            if absent:
                self._why = absent
                self._tell(post, absent)
                await asyncio.sleep(LOOK_FOR_DRIVER_S)
                continue
            self._undead = [each for each in self._undead if each.returncode is None]
            if len(self._undead) < MOST_UNDEAD:
                self._why = await self._listen(post, backoff)
                self._sink.warning("reading NVML failed; a new process reads it", reason=self._why)
            await backoff.wait()

    async def _listen(self, post: Post, backoff: Backoff) -> str:
        """Read one child until it fails; returns the reason."""
        try:
            child = self._child = await self._start()
        except OSError as error:
            return f"there is no process to ask NVML: {error}"
        assert child.stdout is not None
        patience_s, problem, looked = FIRST_LOOK_S, "", False
        steady_s = asyncio.get_running_loop().time() + STEADY_S
        try:
            while True:
                try:
                    async with asyncio.timeout(patience_s):
                        line = await child.stdout.readline()
                except TimeoutError:
                    return f"NVML has not answered for {patience_s * 1000:.0f} ms"
                if not line:
                    return problem or _ending(await child.wait())
                sight = codec.decode(Sight, line) if line != b"\n" else None
                if sight is not None and sight.problem:
                    problem = sight.problem
                    continue
                if sight is not None:
                    self._kernel = max(self._kernel, sight.kernel)
                    looked = looked or sight.gpus is not None
                if not looked:
                    # The kernel's log alone: NVML has not answered yet.
                    if sight is not None and sight.xids:
                        post(GpusSeen(sight))
                    continue
                patience_s = self._settings.patience_ms / 1000
                self._be_patient()
                if sight is not None:
                    if asyncio.get_running_loop().time() >= steady_s:
                        backoff.reset()
                    self._told = ""
                    post(GpusSeen(sight))
        except (IncompatibleRecord, ValueError) as error:
            return f"the process that asks NVML talks nonsense: {error}"
        finally:
            await self._end(child)

    async def _lose_patience(self, post: Post) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            left_s = self._due_s - loop.time()
            if left_s > 0:
                await asyncio.sleep(left_s)
                # What has arrived while this process had no processor is heard first.
                await asyncio.sleep(0.02)
            else:
                self._tell(post, self._why)
                self._be_patient()

    def _be_patient(self) -> None:
        self._due_s = asyncio.get_running_loop().time() + self._settings.patience_ms / 1000

    def _tell(self, post: Post, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            post(GpusSeen(Sight(problem=problem)))

    async def _start(self) -> asyncio.subprocess.Process:
        env = dict(os.environ)
        if self._settings.library:
            directory = str(Path(self._settings.library).parent)
            env["LD_LIBRARY_PATH"] = ":".join(filter(None, (directory, env.get("LD_LIBRARY_PATH", ""))))
        arguments = (
            str(os.getpid()),
            str(self._settings.poll_ms),
            self._settings.kernel_log,
            str(self._kernel),
            *(() if self._settings.only is None else self._settings.only or (NO_GPU,)),
        )
        with effect("gpus.spawn"):
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "agent.gpus.nvml_child",
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=env,
                limit=MAX_LINE_BYTES,
            )

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        """Kill a child, without waiting for one that hangs in the driver."""
        self._child = None
        with suppress(ProcessLookupError), effect("gpus.kill"):
            child.kill()
        try:
            async with asyncio.timeout(1):
                await child.wait()
        except TimeoutError:
            self._undead.append(child)


def _no_driver() -> str:
    return "" if any(Path(each).exists() for each in DRIVERS) else NO_DRIVER


def _ending(code: int) -> str:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"the process that asks NVML ended with {how}"
