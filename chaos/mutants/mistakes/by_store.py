"""Mistakes around checkpoints: rules 5, 7 and 8."""

from __future__ import annotations

from chaos.mutants.edit import Edit
from chaos.mutants.mistakes.by_leader import BASE, COMPARED, FENCED, RESTARTS, STAYS
from chaos.mutants.mistakes.known import known
from chaos.mutants.mutant import CrashPoints, Mutant, Simulated
from chaos.sim.trouble.fault import Fault

RESTORABLE = "a committed checkpoint stays restorable"
PUBLISH = "            await self._publish(taken, staging_path(manifest.ref, staging_id), path)\n"
BAD_STORE = Fault(0.1, "bad_store", 0, 9.0)

MUTANTS = (
    Mutant(
        "commit without its node's incarnation",
        7,
        (FENCED,),
        (known("Every commit compares the incarnation of the node that makes it."),),
    ),
    Mutant(
        "commit while closing",
        7,
        ("no late commit",),
        (
            Edit(
                "recovery/families/commit_rule.py",
                "    if switch.closing is not None:\n",
                "    if switch.closing is not None and switch.generation < 0:\n",
            ),
        ),
        Simulated(RESTARTS),
    ),
    Mutant(
        "a zombie's late commit",
        5,
        ("no late commit", COMPARED),
        (known("A frozen writer's late commit has no effect on a later generation."),),
        Simulated((Fault(0.2, "bad_network", 9, 9.0), *RESTARTS)),
    ),
    Mutant(
        "commit that does not rewrite the head",
        7,
        (BASE, COMPARED),
        (
            Edit(
                "recovery/families/commit_rule.py",
                "puts=(Put(record_key, encode(record)), Put(head_key, encode(CommitHead(old.serial + "
                "1, newest)))),",
                "puts=(Put(record_key, encode(record)),)[: old.serial + len([newest])],",
            ),
        ),
        Simulated(RESTARTS),
    ),
    Mutant(
        "commit record before the rename",
        7,
        (RESTORABLE,),
        (
            Edit("recovery/commit/commit.py", PUBLISH, ""),
            Edit(
                "recovery/commit/commit.py",
                "                if result.succeeded:\n",
                "                if result.succeeded:\n    "
                + PUBLISH.replace("            await", "                await"),
            ),
        ),
        CrashPoints(("commit",)),
    ),
    Mutant(
        "commit record before the rename, seen in a cluster",
        7,
        (STAYS, "the base can be restored"),
        (
            Edit("recovery/commit/commit.py", PUBLISH, ""),
            Edit(
                "recovery/commit/commit.py",
                "                if result.succeeded:\n",
                "                if result.succeeded:\n    "
                + PUBLISH.replace("            await", "                await"),
            ),
        ),
    ),
    Mutant(
        "saves in subdirectories are not looked for",
        7,
        ("success comes after the last commit",),
        (known("A finished TensorFlow checkpoint is committed, whatever its name and its directory."),),
        Simulated(most=80),
    ),
    Mutant(
        "manifest before the data",
        7,
        ("a manifest comes after its data",),
        (
            Edit(
                "recovery/commit/commit.py",
                "                await self._publisher.publish(taken, staging, self._motion)\n"
                "            await self._describe(taken, staging)\n"
                '            with effect("commit.rename", StoreUnreachable):\n'
                "                await self._store.rename(staging, path)\n",
                "                await self._describe(taken, staging)\n"
                '            with effect("commit.rename", StoreUnreachable):\n'
                "                await self._store.rename(staging, path)\n"
                "            await self._publisher.publish(taken, path, self._motion)\n",
            ),
        ),
    ),
    Mutant(
        "half a base in place",
        8,
        (RESTORABLE,),
        (
            Edit(
                "recovery/commit/stage.py",
                "                        await self._build(build, record, manifest, motion)\n"
                '                    with effect("stage.rename", StoreUnreachable):\n'
                "                        await self._run(lambda: _move_in(build, directory))\n",
                "                        await self._build(directory, record, manifest, motion)\n",
            ),
        ),
        CrashPoints(("restore", "restore-own")),
    ),
    Mutant(
        "a store that cannot be read makes a checkpoint bad",
        8,
        ("only what is bad is quarantined",),
        (known("A store that cannot be read makes no checkpoint bad."),),
        Simulated((BAD_STORE, Fault(0.4, "node_kill", 0, 2.0), *RESTARTS)),
    ),
    Mutant(
        "unknown is final",
        8,
        ("liveness",),
        (Edit("agent/core/reporting.py", "STAGE_AGAIN_MS = 1_000\n", "STAGE_AGAIN_MS = 1_000_000_000\n"),),
        Simulated((BAD_STORE, *(Fault(0.5 + n, "operator_restart", 0, 0.1) for n in range(5)))),
    ),
    Mutant(
        "outputs removed before they are in the store",
        9,
        ("what was written stays or is named",),
        (known("Outputs are removed from a node only after they are in the store."),),
        CrashPoints(("outputs",)),
    ),
    Mutant(
        "outputs that the agent notes after their program has begun",
        9,
        ("another life finishes it",),
        (known("A successor of an agent that dies at any moment sends what a task has written."),),
        CrashPoints(("outputs",)),
    ),
)
