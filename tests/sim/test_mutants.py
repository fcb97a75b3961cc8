"""Each rule that is switched off by hand is found, by the promise that it breaks, within a few seeds."""

import pytest

from chaos.sim.mutants import MUTANTS, Mutant
from chaos.sim.run import run_seed

SEEDS = range(1, 81)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    with mutant.planted():
        for seed in SEEDS:
            result = run_seed(seed, mutant.script)
            if any(f"[{mutant.promise}]" in line for line in result.violations):
                return
    pytest.fail(f"{len(SEEDS)} seeds did not find {mutant.name!r}")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.script], ids=lambda mutant: mutant.name)
def test_its_script_breaks_nothing_without_the_mutant(mutant: Mutant) -> None:
    result = run_seed(1, mutant.script)
    assert result.ok, (*result.violations, result.error)
