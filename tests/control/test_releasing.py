"""A quarantined checkpoint that is found whole again."""

from __future__ import annotations

from supervisor.contract.checkpoint import CommitState
from supervisor.contract.views.checkpoints import Finding, VerifyRequest
from tests.control.bank import Bank, views


async def test_one_that_is_read_back_whole_can_be_restored_again() -> None:
    bank = Bank()
    await bank.store.prepare()
    ref = await bank.save(1, 10)
    before, whole = bank.record(ref), dict(bank.store.disk.files)
    bank.damage(ref, None)
    await views(bank.checkpoints.verify(VerifyRequest("digits")))
    assert bank.record(ref).state is CommitState.QUARANTINED
    quarantined = bank.world.job().head
    bank.store.disk.files.update(whole)
    (found,) = await views(bank.checkpoints.verify(VerifyRequest("digits")))
    assert found.finding is Finding.GOOD
    assert found.detail.startswith("it can be restored again; it was quarantined: failed verification: ")
    assert bank.record(ref) == before
    head = bank.world.job().head
    assert head is not None
    assert quarantined is not None
    assert head.value.serial > quarantined.value.serial, "a flip that has chosen an older base must fail"
