"""Shipped code, images, environments and data: brought in while a plan is prepared, so that no start waits
for them; all but images are kept while they are used.
"""

from __future__ import annotations

from dataclasses import replace

from agent.core import pool
from agent.core.desired import DOCKER, Wants, recipe_of
from agent.core.events import BroughtIn
from agent.core.instructions import BringIn, KeepCode, KeepData
from agent.core.state import CodeStanding
from agent.core.step_context import Work
from supervisor.contract.desired import Assignment
from supervisor.contract.job.spec import Pull

AGAIN_MS = 1_000


def bring_in(work: Work, wants: Wants) -> None:
    """Once for each plan in preparation; a copy that is there already is only compared.

    What etcd or docker cannot give now is tried again for as long as the plan stands: that is no fault of the
    program, and must not be told as one.
    A task that has moved here was never in preparation on this node.
    """
    plans = set()
    attempts = work.state.attempts
    moved = [each for each in wants.run.values() if each.moves and each.attempt_id not in attempts]
    brought = (*wants.prepare.values(), *moved)
    making = {each.plan_id for each in brought if _needs_image(work, each)}
    for assignment in brought:
        plans.add(assignment.plan_id)
        container = recipe_of(assignment, work.state.settings.resources.runtime).container
        if _is_carried(assignment) and assignment.plan_id not in making:
            # Its launchers are there: that docker does not answer must not hold them up.
            container = None
        if container is None and not _is_carried(assignment):
            continue
        known = work.state.code.get(assignment.plan_id)
        if known is None or 0 <= known.again_ms <= work.now_ms:
            work.state.code[assignment.plan_id] = CodeStanding(delay=known.delay if known is not None else "")
            environment = assignment.environment
            workdir = assignment.workdir if environment is not None else ""
            needs = BringIn(assignment.plan_id, assignment.code, container, environment, workdir)
            if assignment.data:
                needs = replace(needs, data=assignment.data, job=assignment.job, job_uuid=assignment.job_uuid)
            work.emit(needs)
    for plan_id in [each for each in work.state.code if each not in plans]:
        del work.state.code[plan_id]


def _is_carried(assignment: Assignment) -> bool:
    """Whether it needs files on this node beside an image."""
    return assignment.code is not None or assignment.environment is not None or bool(assignment.data)


def _needs_image(work: Work, assignment: Assignment) -> bool:
    """Whether a container may have to be made for this task, or its image is to be fetched in any case."""
    recipe = recipe_of(assignment, work.state.settings.resources.runtime)
    if recipe.container is None:
        return False
    return recipe.container.pull is Pull.ALWAYS or pool.find(work, recipe, assignment.task.member) is None


def on_unpacked(work: Work, event: BroughtIn) -> None:
    """Note that the code and image of a plan are here, cannot be had, or cannot be had now."""
    if event.plan_id not in work.state.code:
        return
    if event.unknown:
        not_now(work, event.plan_id, event.failure)
    else:
        standing = CodeStanding(done=True, failure=event.failure, hopeless=event.hopeless)
        work.state.code[event.plan_id] = standing


def standing(work: Work, assignment: Assignment) -> CodeStanding:
    """The standing of the code and the image of a task in preparation."""
    if not _is_carried(assignment) and work.state.settings.resources.runtime != DOCKER:
        return CodeStanding(done=True)
    return work.state.code.get(assignment.plan_id, CodeStanding())


def standing_at(work: Work, assignment: Assignment, *, launcher: bool) -> CodeStanding:
    """As `standing`; if its launcher runs already, only the code counts, not the image."""
    if launcher and not _is_carried(assignment):
        return CodeStanding(done=True)
    return standing(work, assignment)


def not_now(work: Work, plan_id: str, why: str) -> None:
    """Note that code or an image cannot be used for now, so that a plan in preparation asks for it again."""
    if plan_id in work.state.code:
        work.state.code[plan_id] = CodeStanding(again_ms=work.now_ms + AGAIN_MS, delay=why)


def keep_data(work: Work, wants: Wants) -> None:
    """Emit the data that tasks and containers use when it changes: other mounts may end."""
    there = (wants.prepare, wants.run, wants.linger, wants.held)
    tasks = [each for some in there for each in some.values()]
    used = {(each.job_uuid, uri) for each in tasks for uri in each.data.values()}
    recipes = [each.recipe for each in work.state.launchers.values()]
    used |= {(each.job_uuid, uri) for each in recipes for uri in each.data.values()}
    if used != work.state.data_kept:
        work.state = replace(work.state, data_kept=frozenset(used))
        work.emit(KeepData(frozenset(used)))


def keep_used(work: Work) -> None:
    """Emit what assignments and launchers use when it changes: other code and environments may be removed."""
    view = work.state.view
    refs = [each.code for each in view.assignments] if view is not None else []
    refs += [each.recipe.code for each in work.state.launchers.values()]
    used = frozenset(ref.digest for ref in refs if ref is not None)
    made = [each.environment for each in view.assignments] if view is not None else []
    made += [each.recipe.environment for each in work.state.launchers.values()]
    used |= {each.key for each in made if each is not None}
    if used != work.state.code_kept:
        work.state = replace(work.state, code_kept=used)
        work.emit(KeepCode(used))
