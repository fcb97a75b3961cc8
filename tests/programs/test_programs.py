"""Programs that know nothing of us train to the right end, undisturbed and with each role killed."""

from __future__ import annotations

from functools import partial

import pytest

from tests.examples.harness import Cluster
from tests.programs.run import Run, play, side_by_side
from tests.programs.shapes import SHAPES, Shape

HELD = [shape for shape in SHAPES if not shape.trouble]


@pytest.mark.timeout(1800)
def test_the_quick_shapes_with_each_role_killed(cluster: Cluster) -> None:
    quick = [shape for shape in HELD if shape.quick]
    runs = side_by_side(
        [(shape.name, partial(play, cluster, shape, shape.victims)) for shape in quick], at_once=4
    )
    assert [f"{name}: {run}" for name, run in runs.items() if not isinstance(run, Run)] == []
    assert len(runs) == len(quick)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shape", HELD, ids=lambda shape: shape.name)
def test_undisturbed_and_with_each_role_killed(cluster: Cluster, shape: Shape) -> None:
    runs = side_by_side(
        [
            ("undisturbed", partial(play, cluster, shape, ())),
            ("killed", partial(play, cluster, shape, shape.victims)),
        ],
        at_once=2,
    )
    assert [f"{name}: {run}" for name, run in runs.items() if not isinstance(run, Run)] == []
