"""The list of all failpoints, made from the source. Names that depend on a value are spelled out here.

A test runs the simulator, and refuses a name that is reached and not listed; another one refuses a kind of
action that the source has and this list has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chaos.failpoints.source import paths, read


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_LEADER = _words(
    "address_published appeal_forgotten checkpoint_collecting checkpoint_quarantined clock close"
    " cluster code_removed commits_caught_up commits_failing commits_lagging commits_work_again delayed"
    " events_removed fallback finishing flip gpu_fault gpu_quarantined gpu_released hang_left leaves"
    " hang_suspected hold_over incident incident_forgotten job_failed mark_forgotten moved node_back"
    " node_cleared node_cordoned node_suspected node_uncordoned plan_abandoned plan_removed"
    " power_off_begun power_off_confirmed power_off_disproved power_off_failed power_off_late prepare"
    " prepare_more recovered reopened reports_removed restart_declined restart_in_place saves_skipped"
    " outputs_late outputs_left_out spares stack_kept started stopped stopping straggler succeeded time"
    " last_look time_is_over work_kept logs_late model_published"
    " commits_missing saves_unusable"
    " joined left stays servers_end etcd_defragmented"
    " cannot_end does_not_restore resize_undone saver_changed saves_at_changing_places saves_elsewhere"
    " goodput brake_changed"
    " checkpoint_parked job_parked node_parked job_deleted records_removed deletion_forgotten"
)
_SERVICE = _words(
    "asked certificate checkpoint_imported checkpoint_pinned checkpoint_quarantined checkpoint_released"
    " checkpoint_unpinned gpu_released job_released node_cordoned node_dismissed node_drained node_uncordoned"
    " records_rebuilt"
)
_SAID = _words("AckExit Grant Kill Refuse Release Reserve Shutdown Suspend Terminate Welcome")

VALUES = {
    "leader.{}": _LEADER,
    "service.{}": _SERVICE,
    "agent.say_{}": _SAID,
    "agent.write_{}": ("Prepared", "Staged"),
    "commit.write_{}": ("manifest", "checkpoint"),
    "mount.write_{}": ("json", "beat", "want", "failed"),
}
"""The values of `{}` in each name: kinds of actions, types of messages and records, kinds of files."""

_NO_RETURN = "launcher.exec"
"""The process is another program then."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """An effect with a point before and one after it, and where in the source it is."""

    name: str
    path: str
    line: int

    def points(self) -> tuple[str, ...]:
        """The names that can be armed: two, but one for an effect from which the process does not return."""
        return (f"{self.name}.before", *(() if self.name == _NO_RETURN else (f"{self.name}.after",)))


def failpoints() -> tuple[Failpoint, ...]:
    """All failpoints, by name. The two stores share theirs: a job has the same effects with either."""
    found = (
        Failpoint(name, point.path, point.line)
        for path in paths()
        for point in read(path).points
        for name in _spelled(point.name)
    )
    return tuple(sorted(found, key=lambda each: (each.name, each.path)))


def names() -> frozenset[str]:
    """The names of all points that can be armed."""
    return frozenset(point for each in failpoints() for point in each.points())


def _spelled(name: str) -> Iterator[str]:
    if "{}" not in name:
        yield name
        return
    for value in VALUES[name]:
        yield name.replace("{}", value)
