"""Steps in lines of output: the formats that are read without configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.logs.counts import Count, Counts, Kind, count_of

PLACE, STEP, GLOBAL = Kind.PLACE, Kind.STEP, Kind.GLOBAL
LINES = [
    # TensorFlow 1: logging hooks, savers, loops of its examples.
    (b"INFO:tensorflow:loss = 0.5321, step = 1200 (2.501 sec)", GLOBAL, 1200, -1),
    (b"INFO:tensorflow:accuracy = 0.91, loss = 0.5321, step = 1200", GLOBAL, 1200, -1),
    (b"INFO:tensorflow:global_step/sec: 101.5", None, -1, -1),
    (b"INFO:tensorflow:global_step = 42, loss = 0.1", GLOBAL, 42, -1),
    (b"1511234567.1: Worker 0: training step 127 done (global step: 146)", GLOBAL, 146, -1),
    (b"I1121 08:00:00.123456 140123 train.py:77] Global Step: 1,234,567  loss 0.1", GLOBAL, 1234567, -1),
    (b"globalstep=7", GLOBAL, 7, -1),
    (b"Global-step #8", GLOBAL, 8, -1),
    (b"Variables not initialized: <tf.Variable 'global_step:0' shape=()>", None, -1, -1),
    (b"Step: 12,  Epoch:  3,  Batch: 100 of 550,  Cost: 2.3012", STEP, 12, 3),
    # Loops.
    (b"step 12 loss 0.4", STEP, 12, -1),
    (b"step = 12", STEP, 12, -1),
    (b"step = 12, loss = 0.4", STEP, 12, -1),
    (b"step = 1,200, loss = 0.4", STEP, 1200, -1),
    (b"step 12,0.4", STEP, 12, -1),
    (b"[step 00012/20000] loss=0.4", STEP, 12, -1),
    (b"Train step #12", STEP, 12, -1),
    (b"Iteration 5: loss 0.2", STEP, 5, -1),
    (b"iter: 1,200 | 0.2", STEP, 1200, -1),
    (b"Epoch 2, Step 10", STEP, 10, 2),
    (b"Epoch 3, loss: 0.12", PLACE, -1, 3),
    (b"Epoch 1 Batch 50 Loss 0.1290", PLACE, 50, 1),
    (b"Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3", PLACE, 640, 1),
    (b"Epoch: [4][ 20/500]  Time 0.1", PLACE, 20, 4),
    # Keras.
    (b"Epoch 3/10", PLACE, -1, 3),
    (b"Epoch 00003: val_loss improved from 0.3 to 0.2, saving model to m.h5", PLACE, -1, 3),
    (b" 12/100 [==>...........................] - ETA: 3s - loss: 0.5", PLACE, 12, -1),
    (b"100/100 [==============================] - 1s 10ms/step - loss: 0.5", PLACE, 100, -1),
    ("12/100 ━━━━━━━━━━━━━━━━━━━━ 1s 12ms/step - loss: 2.3".encode(), PLACE, 12, -1),
    (b"100/100 - 1s - loss: 0.5 - 12ms/epoch - 1ms/step", PLACE, 100, -1),
    (b"     12/Unknown - 1s 12ms/step - loss: 0.5", PLACE, 12, -1),
    # tqdm.
    ("12%|█▏        | 12/100 [00:01<00:08, 10.1it/s]".encode(), PLACE, 12, -1),
    (b"12it [00:01, 10.1it/s, loss=0.3]", PLACE, 12, -1),
    ("Epoch 4:  12%|█▏        | 12/100 [00:01<00:08, 10.1it/s]".encode(), PLACE, 12, 4),
    (b"12%|#1        | 1234/9999 [00:01<00:08, 100kB/s]", None, -1, -1),
    # JSON lines.
    (b'{"step": 12, "loss": 0.5}', STEP, 12, -1),
    (b'{"epoch":2,"step":12,"loss":0.5}', STEP, 12, 2),
    (b'{"global_step":120,"step":12}', GLOBAL, 120, -1),
    # What counts nothing.
    (b"time per step: 0.35 s", None, -1, -1),
    (b"12 ms/step", None, -1, -1),
    (b"steps: 10000, batch size 32", None, -1, -1),
    (b"max_steps=100 num_epochs=3", None, -1, -1),
    (b"loss 0.35 after 12 s", None, -1, -1),
    (b"step 12%", None, -1, -1),
]


@pytest.mark.parametrize(("line", "kind", "number", "epoch"), LINES, ids=[repr(row[0])[:50] for row in LINES])
def test_a_line_counts(line: bytes, kind: Kind | None, number: int, epoch: int) -> None:
    expected = Count(kind, number, epoch) if kind is not None else None
    found = count_of(line, in_epochs=kind is PLACE)
    assert (replace(found, announced=False) if found is not None else None) == expected


def test_a_bar_before_the_first_epoch_is_of_a_download() -> None:
    assert count_of(b"8192/11490434 [..............................] - ETA: 0s") is None


def read(*lines: bytes) -> Counts:
    counts = Counts()
    for line in lines:
        count = count_of(line, in_epochs=counts.in_epochs)
        if count is not None:
            counts.take(count, line)
    return counts


def test_the_step_at_which_training_ends_is_no_step_that_was_made() -> None:
    goes_on = b"train | step:    110 | training until step 300..."
    assert read(goes_on).reports == 0
    counts = read(goes_on, b"train | step:    120 | steps/sec:   17.4 | output: ")
    assert (counts.reports, counts.step, counts.first) == (1, 120, 120)
    assert count_of(b"Training until global step 5000") is None


def test_a_number_that_begins_anew_with_each_epoch_is_no_global_step() -> None:
    first = read(b"Epoch 1, Step 100", b"Epoch 1, Step 200")
    assert (first.reports, first.step, first.said) == (2, -1, "epoch 1, step 200")
    then = read(b"Epoch 1, Step 100", b"Epoch 1, Step 200", b"Epoch 2, Step 10")
    assert (then.reports, then.step, then.first, then.said) == (3, -1, -1, "epoch 2, step 10")


def test_a_number_that_goes_on_in_the_next_epoch_is_one() -> None:
    counts = read(b"Epoch 1, Step 100", b"Epoch 1, Step 200", b"Epoch 2, Step 300")
    assert (counts.step, counts.first, counts.is_global) == (300, 100, False)


def test_without_epochs_a_count_that_begins_anew_shows_by_its_fall() -> None:
    counts = read(b"step 0", b"step 50", b"step 0", b"step 50")
    assert (counts.reports, counts.step) == (3, -1)


ANNOUNCED = (
    b"Epoch 1/40",
    b"Epoch 1: LearningRateScheduler setting learning rate to 0.01.",
    b"Start of epoch 0",
    b"Epoch [1/40]",
    b"Starting training at step=100",
    b"Restored from step 100",
    b"Resuming at global step 1,200",
    b"step 0",
    b"  0%|          | 0/100 [00:00<?, ?it/s]",
)


@pytest.mark.parametrize("line", ANNOUNCED)
def test_what_is_announced_is_no_step_that_was_made(line: bytes) -> None:
    counts = read(line)
    assert (counts.reports, counts.step, counts.first) == (0, -1, -1)


@pytest.mark.parametrize(
    "lines",
    [
        (b"Epoch 1/40", b"  1/100 [..............................] - loss: 0.5"),
        (b"Epoch 1/40", b"100/100 - 1s - loss: 0.5"),
        (b"Epoch 1/40", b"Epoch 2/40"),
        (b"Epoch 1/40", b"Epoch 2: LearningRateScheduler setting learning rate to 0.01."),
        (b"Epoch 1, loss 0.53",),
        (b"Epoch 1 accuracy 97%",),
        (b"step 0 loss 2.3",),
        (b"loss = 2.3, step = 0",),
        (b"Starting training at step=100", b"step 101"),
        (b"Starting step 5", b"Starting step 6"),
        (b"Saved checkpoint for step 10: ck/ckpt-1",),
        (
            b"train | step:      0 | training until step 300...",
            b"train | step:     10 | steps/sec:    6.9",
        ),
        (b"step 0", b"step 1"),
        (b"  0%|          | 0/9 [00:00<?, ?it/s]", b" 10%|#         | 1/9 [00:01<00:08,  1.0it/s]"),
    ],
)
def test_a_step_that_was_made_shows(lines: tuple[bytes, ...]) -> None:
    assert read(*lines).reports == 1
    assert not read(*lines[:-1]).reports


def test_a_step_that_falls_back_to_a_checkpoint_is_followed() -> None:
    counts = read(
        b"step 100", b"step 900 loss 1", b"saved at step 900", b"step 910 loss 1", b"step 801 loss 1"
    )
    assert (counts.step, counts.reports) == (900, 5)
    counts = read(b"step 700 loss 1", b"saved at step 900", b"step 910 loss 1", b"step 801 loss 1")
    assert counts.step == 801
    assert read(b"global step 910", b"global step 801").step == 801


def test_a_global_step_is_preferred_to_a_local_one() -> None:
    counts = read(
        b"step 1",
        b"training step 1 done (global step: 20)",
        b"training step 2 done (global step: 22)",
        b"step 3",
    )
    assert (counts.step, counts.first, counts.is_global) == (22, 20, True)


def test_a_number_that_is_merely_repeated_shows_nothing() -> None:
    waits = [b"12:00:%02d waiting for worker 1 before step 5 (try %d)" % (n, n) for n in range(50)]
    assert read(*waits).reports == 1
    assert read(b"step 5", b"at 9: step 900", b"step 5", b"at 9: step 900").reports == 2


def test_templates_are_bounded() -> None:
    counts = read(*(b"step 1 of %s" % bytes([65 + n // 26, 65 + n % 26]) for n in range(600)))
    assert len(counts._templates) <= 64
