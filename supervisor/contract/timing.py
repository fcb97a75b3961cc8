"""The durations that make the safety argument (docs/design.md, "Time"), held and checked in one place."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.contract.errors import UserError

REHEARSED_TIMES = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """One cluster's durations, in milliseconds on CLOCK_BOOTTIME.

    `d_ms` is rule 3's D: the time for which an agent may run tasks after it sent its last good linearizable
    read, and the time that a leader waits after a lost mark before it replaces them.
    """

    profile: str
    d_ms: int
    suspect_ms: int
    beat_ms: int
    pull_ms: int
    rpc_deadline_ms: int
    etcd_failover_ms: int
    agent_restart_ms: int
    kill_time_ms: int
    drift_ms: int
    leader_lease_s: int
    node_lease_s: int
    launcher_linger_ms: int = 30_000
    completion_grace_ms: int = 10_000
    commit_deadline_ms: int = 15_000

    @property
    def worst_case_ms(self) -> int:
        """The longest time of a healthy agent without a fresh deadline, plus the time of a kill."""
        return self.unread_ms + self.pull_ms + self.kill_time_ms + self.drift_ms

    @property
    def unread_ms(self) -> int:
        """The largest age of a healthy agent's last good read while etcd is well (rule 3)."""
        outage = max(
            2 * self.rpc_deadline_ms + self.etcd_failover_ms,
            self.agent_restart_ms + self.rpc_deadline_ms,
        )
        return self.beat_ms + outage

    @property
    def tick_ms(self) -> int:
        """The interval of a leader's ticks, for values that only time changes.

        An agent's interval is twice as long.
        """
        return self.suspect_ms // 16

    @property
    def reserve_ms(self) -> int:
        """The time that an agent subtracts from D when it answers a launcher's pull (rule 4)."""
        return self.kill_time_ms + self.drift_ms

    def kill_time_for(self, longest_ms: int) -> int:
        """The time that a node allows for a kill, where the longest of its rehearsals took `longest_ms`.

        It is twice that, as tasks hold more memory than a rehearsal, and never less than the profile's
        `kill_time`.
        """
        return max(self.kill_time_ms, REHEARSED_TIMES * longest_ms)

    def most_kill_time_ms(self, d_ms: int) -> int:
        """The longest kill time with which tasks can train: `d_ms` has to cover a read, its answer and a pull
        too.
        """
        return d_ms - self.drift_ms - self.beat_ms - self.rpc_deadline_ms - self.pull_ms

    def check(self) -> Timing:
        """Return self; raises UserError that shows the inequality that does not hold."""
        if self.worst_case_ms > self.d_ms:
            raise UserError(
                f"timing profile {self.profile!r}: beat + pull + max(2*rpc_deadline + etcd_failover, "
                f"agent_restart + rpc_deadline) + kill_time + drift = {self.worst_case_ms} ms "
                f"is more than D = {self.d_ms} ms; raise D (control_plane_grace) or lower the others"
            )
        return self


FAST = Timing(
    profile="fast",
    d_ms=4_000,
    suspect_ms=800,
    beat_ms=250,
    pull_ms=250,
    rpc_deadline_ms=500,
    etcd_failover_ms=900,
    agent_restart_ms=1_800,
    kill_time_ms=1_000,
    drift_ms=100,
    leader_lease_s=1,
    node_lease_s=10,
).check()

DEFAULT = Timing(
    profile="default",
    d_ms=12_000,
    suspect_ms=3_000,
    beat_ms=1_000,
    pull_ms=500,
    rpc_deadline_ms=2_000,
    etcd_failover_ms=3_500,
    agent_restart_ms=5_000,
    kill_time_ms=2_000,
    drift_ms=250,
    leader_lease_s=3,
    node_lease_s=30,
).check()

PROFILES = {timing.profile: timing for timing in (FAST, DEFAULT)}
