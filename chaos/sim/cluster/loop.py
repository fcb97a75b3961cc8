"""An asyncio loop on virtual time, whose callbacks belong to simulated processes.

Time stands still while anything is ready and then jumps to the next timer. Every callback runs in the context
that it was scheduled from, so the context variable `PROCESS` says whose code it is: what a frozen process is
to do is held back until it thaws, timers included, and what a dead one was to do never happens, so that not
even its `finally` blocks have an effect. Nothing here reads a real clock, a socket or a thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import sys
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from enum import Enum
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from supervisor.contract.errors import TfSupervisorError

MOST_STEPS = 500_000
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Work = Coroutine[Any, Any, T] | Generator[Any, None, T]


class Deadlock(Exception):
    """No callback is scheduled, so the run can never go on."""


class TooManySteps(Exception):
    """The run has used up its budget of callbacks: something spins."""


class Life(Enum):
    """Whether a simulated process executes."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class SimProcess:
    """One operating system process: a context for its code, and what is held back from it.

    `name` is unique in a run: a restarted daemon is another process.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = Life.RUNNING
        self.held: list[Call] = []
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    @property
    def alive(self) -> bool:
        """Running or frozen."""
        return self.life is not Life.DEAD


PROCESS: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("PROCESS", default=None)
"""The process whose code runs now; None in the world's own code."""


class Call(asyncio.TimerHandle):
    """One callback, when it is due and whose code it is."""

    __slots__ = ("args", "callback", "context", "process")

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: VirtualLoop,
        context: contextvars.Context | None,
    ) -> None:
        # The base class's own checks are left out: a run is a few hundred thousand of these.
        self._when, self._scheduled, self._cancelled = when, False, False
        self._callback, self._args, self._repr, self._loop = callback, (), None, loop
        self.callback, self.args = callback, args
        self.context = contextvars.copy_context() if context is None else context
        self.process = self.context.get(PROCESS)

    def cancel(self) -> None:
        """It is skipped when it is due."""
        self._cancelled = True

    def cancelled(self) -> bool:
        """Whether it is to be skipped."""
        return self._cancelled


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. `steps` counts callbacks; more than `max_steps` of them raise TooManySteps.

    `threads` draws in how many seconds what a process gives to a thread is done, and how long after that it
    hears of it; None: at once.
    Of its base class it is only a type: nothing of a loop that waits for sockets is set up.
    """

    def __init__(self, max_steps: int = MOST_STEPS) -> None:
        self.steps = 0
        self.failures: list[str] = []
        self.max_steps = max_steps
        self.threads: Callable[[], tuple[float, float]] | None = None
        self._now_s = 0.0
        self._serial = 0
        self._ready: deque[Call] = deque()
        self._timers: list[tuple[float, int, Call]] = []
        self._world = contextvars.Context()
        self._closed = False
        self._running = False
        # Kept until the end: a coroutine that is collected runs its `finally` blocks at once.
        self._tasks: list[asyncio.Task[Any]] = []
        self._processes: list[SimProcess] = []

    # What asyncio asks of a loop.

    def time(self) -> float:
        """Virtual seconds since the run began."""
        return self._now_s

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """Whether a run is in progress."""
        return self._running

    def is_closed(self) -> bool:
        """Whether the run is over."""
        return self._closed

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> Call:
        """Run it after all that is ready now."""
        call = Call(self._now_s, callback, args, self, context)
        self._ready.append(call)
        return call

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> Call:
        """There are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> Call:
        """Run it after `delay` virtual seconds."""
        when = self._now_s + delay
        call = Call(when, callback, args, self, context)
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, call))
        return call

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> Call:
        """Run it at a virtual time; what is due at the same time runs in the order of the calls."""
        call = Call(when, callback, args, self, context)
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, call))
        return call

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Work[T], *, name: object = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        """Start a coroutine."""
        task = asyncio.Task(coro, loop=self, name=str(name) if name else None, context=context)
        self._tasks.append(task)
        if len(self._tasks) > _MANY_TASKS:
            self._tasks = [each for each in self._tasks if not each.done()]
        return task

    def run_in_executor(self, _executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run it now, or when `threads` says: a real one would bring back the real world's disorder.

        Like in a thread it is done though nobody waits for it any more, unless the process is dead.
        """
        future: asyncio.Future[T] = self.create_future()
        done_s, known_s = (
            self.threads() if self.threads is not None and PROCESS.get() is not None else (0.0, 0.0)
        )

        def work() -> None:
            try:
                answer = partial(future.set_result, func(*args))
            except (OSError, ValueError, RuntimeError, TfSupervisorError) as error:
                answer = partial(future.set_exception, error)
            if known_s:
                self.call_later(known_s, tell, answer)
            else:
                tell(answer)

        def tell(answer: Callable[[], None]) -> None:
            if not future.done():
                answer()

        if done_s:
            self.call_later(done_s, work)
        else:
            work()
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Remember what nobody handled; the run fails with it."""
        if not self._closed:
            error = context.get("exception")
            self.failures.append(f"{context.get('message')}: {error!r}")

    # What the simulator asks.

    def spawn(self, process: SimProcess, work: Work[T]) -> asyncio.Task[T]:
        """Start `work` as code of `process`."""
        if process not in self._processes:
            self._processes.append(process)
        return self.create_task(work, context=process.context)

    def world(self, work: Work[T]) -> asyncio.Task[T]:
        """Start `work` as nobody's code: a message in flight, a disk, the story of the run."""
        return self.create_task(work, context=self._world)

    def begin(self, process: SimProcess | None, work: Work[object]) -> None:
        """Start `work` as code of `process` (the world's for None); nobody waits for it."""
        task = self.world(work) if process is None else self.spawn(process, work)
        task.add_done_callback(self._note_failure)

    def _note_failure(self, task: asyncio.Task[object]) -> None:
        if not task.cancelled() and not self._closed and task.exception() is not None:
            self.failures.append(f"{task.get_coro()}: {task.exception()!r}")

    def post(self, process: SimProcess | None, delay_s: float, callback: Callable[[], object]) -> None:
        """Have `callback` run later as code of `process` (the world's for None)."""
        self.call_later(delay_s, callback, context=self._world if process is None else process.context)

    def freeze(self, process: SimProcess) -> None:
        """SIGSTOP: nothing of it runs until the thaw."""
        if process.life is Life.RUNNING:
            process.life = Life.FROZEN

    def thaw(self, process: SimProcess) -> None:
        """SIGCONT: what became due meanwhile runs now, in that order."""
        if process.life is Life.FROZEN:
            process.life = Life.RUNNING
            self._ready.extend(process.held)
            process.held = []

    def kill(self, process: SimProcess) -> None:
        """SIGKILL: nothing of it runs ever again."""
        process.life = Life.DEAD

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until `future` is done; raises Deadlock, TooManySteps and what the future raises."""
        task = future if isinstance(future, asyncio.Future) else self.world(_as_work(future))
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finalize)
        _set_running_loop(self)
        self._running = True
        try:
            self._run_until(task)
        finally:
            self._running = False
            _set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
        return task.result()

    def close(self) -> None:
        """End the run: cancel every task and let it clean up, at this very moment, before nobody's eyes."""
        self._closed = True
        self._timers.clear()
        for process in self._processes:
            process.life = Life.RUNNING
            self._ready.extend(process.held)
            process.held = []
        for task in self._tasks:
            task.cancel()
        _set_running_loop(self)
        try:
            for _ in range(_CLEANING_STEPS):
                if not self._ready:
                    break
                call = self._ready.popleft()
                if not call.cancelled():
                    call.context.run(call.callback, *call.args)
        finally:
            _set_running_loop(None)
        self._ready.clear()
        self._tasks.clear()

    def _run_until(self, task: asyncio.Future[T]) -> None:
        ready = self._ready
        while not task.done():
            if not ready:
                self._advance()
            call = ready.popleft()
            if call.cancelled():
                continue
            process = call.process
            if process is not None and process.life is not Life.RUNNING:
                process.held.append(call)
                continue
            self.steps += 1
            call.context.run(call.callback, *call.args)
            if self.steps > self.max_steps:
                raise TooManySteps(f"{self.steps} callbacks by {self._now_s:.3f} s")

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"nothing is scheduled at {self._now_s:.3f} s")
        now_s = self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= now_s:
            self._ready.append(heapq.heappop(timers)[2])

    def _finalize(self, generator: AsyncGenerator[object, object]) -> None:
        if not self._closed:
            self.call_soon(lambda: self.create_task(generator.aclose()), context=self._world)


async def _as_work(waited: Generator[Any, None, T] | Awaitable[T]) -> T:
    if isinstance(waited, Generator):
        raise TypeError("a generator is no coroutine")
    return await waited


_MANY_TASKS = 2_000
_CLEANING_STEPS = 1_000_000
