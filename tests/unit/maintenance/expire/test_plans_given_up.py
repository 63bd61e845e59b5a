"""An expiration that ends before its commit says why, and leaves no plan; what goes wrong besides hides neither."""

import pytest

from icekeep.errors import ConflictError, InvalidTableError, SafetyError, UnavailableError
from icekeep.maintenance.delete import plan_file as plan_writing
from icekeep.maintenance.expire import run as execute
from icekeep.maintenance.expire.job import plan_expire_snapshots
from kit.expired_tables import ExpiredWorld
from kit.runtime import no_spark, with_runtime


@pytest.fixture
def world():
    return ExpiredWorld()


def approved(world):
    """Expire what is approved, which is not planned again after a conflict."""
    arguments = {"older_than": world.runtime.now_ms(), "retain_last": 1}
    plan = plan_expire_snapshots(with_runtime(world.table, world.runtime), no_spark, **arguments)
    return world.expire(approve=plan.hash)


def test_a_catalog_that_is_away_after_a_conflict_does_not_hide_it(world, monkeypatch):
    def refused(*_, **__):
        world.catalog.failing_loads = 1
        raise ConflictError("others kept changing it")

    monkeypatch.setattr(execute, "commit", refused)
    with pytest.raises(ConflictError, match="others kept changing it"):
        approved(world)
    assert [at for at in world.own() if at.endswith("plan.json")]


def test_a_plan_whose_commit_was_refused_is_forgotten(world, monkeypatch):
    def refused(*_, **__):
        raise ConflictError("others kept changing it")

    monkeypatch.setattr(execute, "commit", refused)
    with pytest.raises(ConflictError):
        approved(world)
    assert not [at for at in world.own() if at.startswith("plans/")]


@pytest.mark.parametrize("is_away", [False, True])
def test_a_retained_manifest_that_is_found_broken_while_the_plan_is_written_is_refused_and_no_part_is_left(
    world, monkeypatch, is_away
):
    """Where Spark has the files they are worked out only then."""
    classify_files = plan_writing.classify_files

    def broken(*arguments):
        classify_files(*arguments)
        if is_away:
            world.storage.before = gone
        raise InvalidTableError("manifest 'm' is not whole")

    def gone(what, location):
        if what in ("list", "delete_many"):
            raise UnavailableError("out of reach")

    monkeypatch.setattr(plan_writing, "classify_files", broken)
    with pytest.raises(SafetyError, match="not everything can be read: manifest 'm' is not whole"):
        world.expire()
    assert bool([at for at in world.own() if at.startswith("plans/")]) is is_away
    assert len(world.table.metadata.snapshots) == 4
