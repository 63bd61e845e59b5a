"""Many histories of purges in two catalogs: `simulation.purging`."""

import pytest

from kit.cases import scaled, seeds
from simulation.broken_purges import BROKEN
from simulation.doing import Violation
from simulation.purging import PurgingWorld

pytestmark = pytest.mark.slow


def test_no_table_that_lives_loses_a_file() -> None:
    deaths = finished = 0
    for seed in seeds(scaled(200, least=30)):
        world = PurgingWorld(seed)
        try:
            world.run()
        except Violation as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        deaths += world.deaths_count
        finished += world.finished_count
    # Both must come about, or nothing was shown.
    assert deaths > 10
    assert finished > 0


@pytest.mark.nightly
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_purge_that_is_broken_on_purpose_loses_files(broken) -> None:
    def run() -> None:
        for seed in range(300):
            PurgingWorld(seed).run()

    with broken(), pytest.raises(Violation, match="G1"):
        run()
