"""The output and processor time of programs of thirty shapes, on a virtual clock.

A shape is an endless run of pieces: for so many seconds the program uses so many processors, and then it
writes some bytes. The formats are those of TensorFlow 1, Keras, tqdm, absl and of loops as people write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random

Piece = tuple[float, float, bytes]
"""(seconds, processors in use, output at the end)"""
Shape = Callable[[Random], Iterator[Piece]]


def loss(rng: Random, step: int) -> float:
    return 2.3 / (1 + step / 500) + rng.uniform(0, 0.05)


def start(seconds: float = 12.0, lines: int = 12) -> Iterator[Piece]:
    """Imports, devices, warnings: all that is printed before training begins."""
    for number in range(lines):
        yield (
            seconds / lines,
            1.0,
            b"2026-11-25 01:00:%02d.1: I tensorflow/core/x.cc:%d] ready\n" % (number, number),
        )


def tf1_hooks(rng: Random) -> Iterator[Piece]:
    yield from start()
    for step in count(0, 100):
        yield (
            rng.uniform(2, 3),
            3.0,
            b"INFO:tensorflow:loss = %.4f, step = %d (2.5 sec)\n" % (loss(rng, step), step),
        )
        yield 0.0, 3.0, b"INFO:tensorflow:global_step/sec: %.2f\n" % rng.uniform(30, 50)
        if step % 20_000 == 19_900:
            yield 20.0, 0.2, b"INFO:tensorflow:Saving checkpoints for %d into /c/model.ckpt.\n" % step


def tf1_supervisor(rng: Random) -> Iterator[Piece]:
    yield from start()
    for step in count(1):
        words = b"%.4f: Worker 1: training step %d done (global step: %d)\n"
        yield rng.uniform(0.2, 0.6), 0.8, words % (1_511_000_000 + step, step, 2 * step + rng.randrange(4))


def tf1_worker_that_waits(rng: Random) -> Iterator[Piece]:
    yield from start()
    for number in range(10):
        words = b"INFO:tensorflow:Waiting for model to be ready. Ready_for_local_init_op: None, 01:%02d:30\n"
        yield 30.0, 0.01, words % number
    yield from tf1_hooks(rng)


def keras_bars(rng: Random) -> Iterator[Piece]:
    yield from start()
    for epoch in count(1):
        yield 1.0, 2.0, b"Epoch %d/1000\n" % epoch
        for batch in range(1, 101):
            bar = b"=" * (batch * 30 // 100) + b">" + b"." * (29 - batch * 30 // 100)
            yield 0.3, 2.0, b"\r%3d/100 [%s] - ETA: 3s - loss: %.4f" % (batch, bar, loss(rng, epoch * batch))
        yield rng.uniform(5, 15), 2.0, b" - val_loss: %.4f\n" % loss(rng, epoch)


def keras3_bars(rng: Random) -> Iterator[Piece]:
    yield from start()
    for epoch in count(1):
        yield 1.0, 2.0, b"Epoch %d/1000\n" % epoch
        for batch in range(1, 101):
            words = "\r\x1b[1m%d/100\x1b[0m \x1b[32m━━━━━\x1b[0m \x1b[1m1s\x1b[0m 12ms/step - loss: %.4f"
            yield 0.4, 2.0, (words % (batch, loss(rng, batch))).encode()
        yield 2.0, 2.0, b"\n"


def keras_lines(rng: Random) -> Iterator[Piece]:
    yield from start()
    for epoch in count(1):
        yield 0.1, 2.0, b"Epoch %d/1000\n" % epoch
        yield rng.uniform(60, 80), 2.0, b"100/100 - 70s - loss: %.4f - 700ms/step\n" % loss(rng, epoch)


def silent(rng: Random) -> Iterator[Piece]:
    yield from start(rng.uniform(5, 20))
    while True:
        yield 60.0, 2.5, b""


def epoch_and_step(rng: Random) -> Iterator[Piece]:
    yield from start()
    for epoch in count(1):
        for step in range(10, 210, 10):
            yield rng.uniform(1, 3), 1.5, b"Epoch %d, Step %d, loss %.4f\n" % (epoch, step, loss(rng, step))


def epochs_alone(rng: Random) -> Iterator[Piece]:
    yield from start()
    for epoch in count(1):
        yield rng.uniform(100, 140), 1.2, b"Epoch %d\n" % epoch


def bars_of_tqdm(rng: Random) -> Iterator[Piece]:
    yield from start()
    while True:
        for done in range(0, 1000, 5):
            words = "\r%3d%%|%s      | %d/1000 [00:%02d<01:00, 10.1it/s]"
            yield 0.5, 1.0, (words % (done // 10, "█" * (done // 100), done, done // 20)).encode()
        yield rng.uniform(3, 9), 1.0, b"\n"


def tqdm_in_epochs(rng: Random) -> Iterator[Piece]:
    yield from start()
    for epoch in count():
        for done in range(1, 200):
            yield 0.5, 1.0, b"\rEpoch %d:  12%%|#1  | %d/200 [00:01<00:08, 10.1it/s]" % (epoch, done)
        yield rng.uniform(1, 5), 1.0, b"\n"


def json_lines(rng: Random) -> Iterator[Piece]:
    yield from start()
    for step in count(0, 10):
        yield rng.uniform(4, 6), 1.0, b'{"step": %d, "loss": %.5f}\n' % (step, loss(rng, step))


def absl(rng: Random) -> Iterator[Piece]:
    yield from start()
    for step in count(1000, 1000):
        words = b"I1125 01:%02d:00.123456 140 train.py:77] Iteration %d: loss %.4f\n"
        yield rng.uniform(50, 70), 4.0, words % (step // 1000 % 60, step, loss(rng, step))


def fast_steps(rng: Random) -> Iterator[Piece]:
    yield from start()
    for step in count(1, 5):
        yield 0.5, 1.0, b"".join(b"step %d loss %.4f\n" % (step + n, loss(rng, step)) for n in range(5))


def slow_steps(rng: Random) -> Iterator[Piece]:
    yield from start()
    for step in count(1):
        yield rng.uniform(150, 200), 8.0, b"step %d loss %.4f\n" % (step, loss(rng, step))


def evaluates_in_silence(rng: Random) -> Iterator[Piece]:
    yield from start()
    for step in count(1):
        yield 1.0, 4.0, b"step %d loss %.4f\n" % (step, loss(rng, step))
        if step % 900 == 0:
            yield 600.0, 1.0, b"evaluated: accuracy %.4f\n" % rng.random()


def waits_for_data(rng: Random) -> Iterator[Piece]:
    yield from start()
    for step in count(1):
        yield 0.5, 2.0, b"step %d\n" % step
        if step % 50 == 0:
            yield rng.uniform(5, 25), 0.02, b""


def losses_alone(rng: Random) -> Iterator[Piece]:
    yield from start()
    for number in count():
        yield rng.uniform(8, 12), 1.0, b"train loss %.6f accuracy %.4f\n" % (loss(rng, number), rng.random())


def dots(rng: Random) -> Iterator[Piece]:
    yield from start()
    while True:
        yield rng.uniform(0.5, 2), 1.0, b"."


def on_a_gpu(rng: Random) -> Iterator[Piece]:
    yield from start(30)
    for step in count(50, 50):
        yield (
            rng.uniform(10, 14),
            1.0,
            b"[%d/90000] loss: %.3f global_step: %d\n" % (step, loss(rng, step), step),
        )


def of_a_coordinator(rng: Random) -> Iterator[Piece]:
    """A worker that only serves: it says nothing, and works now and then."""
    yield from start()
    while True:
        yield rng.uniform(0.5, 3), 0.4, b""


def compiles_for_long(rng: Random) -> Iterator[Piece]:
    yield from start(480, 40)
    yield from fast_steps(rng)


def says_much_and_then_nothing(rng: Random) -> Iterator[Piece]:
    for number in range(300):
        yield 0.1, 1.0, b"loading shard %d of 300\n" % number
    while True:
        yield rng.uniform(300, 900), 3.0, b""


def chatters(rng: Random) -> Iterator[Piece]:
    yield from start()
    for step in count(1):
        yield 2.0, 1.0, b"DEBUG 2026-11-25 01:02:03,%03d pool: heartbeat %d ok\n" % (step % 1000, step)
        if step % 20 == 0:
            yield 0.0, 1.0, b"step %d loss %.4f\n" % (step, loss(rng, step))


def thousands(rng: Random) -> Iterator[Piece]:
    yield from start()
    for step in count(999_000, 250):
        yield rng.uniform(5, 7), 1.0, f"global step {step:,} | loss {loss(rng, step):.3f}\n".encode()


def goes_back(rng: Random) -> Iterator[Piece]:
    """Its parameter server is restarted now and then: it goes on from an older checkpoint."""
    yield from start()
    step = 0
    while True:
        step += 10
        yield 1.0, 0.7, b"INFO:tensorflow:loss = %.3f, step = %d\n" % (loss(rng, step), step)
        if rng.random() < 0.002:
            step = max(0, step - rng.randrange(500))
            yield (
                rng.uniform(4, 20),
                0.02,
                b"INFO:tensorflow:An error was raised: recovering from step %d\n" % step,
            )


def remote(rng: Random) -> Iterator[Piece]:
    """It has others work, and uses next to no processor itself."""
    yield from start(5)
    for step in count(5, 5):
        yield rng.uniform(3, 8), 0.02, b"step %d loss %.4f\n" % (step, loss(rng, step))


def twice_a_step(rng: Random) -> Iterator[Piece]:
    yield from start()
    for step in count(1):
        yield 1.0, 1.0, b"step %d: forward\nstep %d: backward\n" % (step, step)
        yield rng.uniform(0, 1), 1.0, b"lr 0.001 step %d\n" % step


def batches(rng: Random) -> Iterator[Piece]:
    yield from start()
    for epoch in count(1):
        for batch in range(100, 1000, 100):
            words = b"Epoch %d batch %d of 1000, examples/sec %.1f\n"
            yield rng.uniform(3, 6), 1.0, words % (epoch, batch, rng.uniform(90, 110))


def slow_epochs_in_silence(rng: Random) -> Iterator[Piece]:
    yield from start()
    for epoch in count(1):
        yield 900.0, 2.0, b"Epoch %05d: val_loss improved to %.4f, saving model\n" % (epoch, loss(rng, epoch))


SHAPES: dict[str, Shape] = {
    each.__name__: each
    for each in (
        *(tf1_hooks, tf1_supervisor, tf1_worker_that_waits, keras_bars, keras3_bars, keras_lines, silent),
        *(epoch_and_step, epochs_alone, bars_of_tqdm, tqdm_in_epochs, json_lines, absl, fast_steps),
        *(slow_steps, evaluates_in_silence, waits_for_data, losses_alone, dots, on_a_gpu),
        *(of_a_coordinator, compiles_for_long, says_much_and_then_nothing, chatters, thousands, goes_back),
        *(remote, twice_a_step, batches, slow_epochs_in_silence),
    )
}


def stopped(_rng: Random) -> Iterator[Piece]:
    """SIGSTOP."""
    while True:
        yield 60.0, 0.0, b""


def deadlock(rng: Random) -> Iterator[Piece]:
    """In a collective: some threads poll."""
    while True:
        yield 5.0, rng.uniform(0.0, 0.03), b""


def stuck_input(rng: Random) -> Iterator[Piece]:
    while True:
        yield 10.0, rng.uniform(0.0, 0.02), b""


def dead_peer(rng: Random) -> Iterator[Piece]:
    """It says so, again and again."""
    for attempt in count(1):
        words = (
            b"W 2026-11-25 02:00:00.%06d: retrying connection to 10.0.0.7:2222 (attempt %d, %.1fs elapsed)\n"
        )
        yield min(20.0, 0.05 * 2**attempt), rng.uniform(0.0, 0.02), words % (attempt, attempt, 20.0 * attempt)


HANGS: dict[str, Shape] = {each.__name__: each for each in (stopped, deadlock, stuck_input, dead_peer)}
