"""Who is at work on a plan."""

import os
import pickle

import pytest

from icekeep.errors import ClaimedError
from icekeep.maintenance.delete.lease import CLAIMS, LEASE_MS, RESTORE, last_work, new_claim, released, take_claim
from icekeep.processes import has_ended, process_name
from kit.runtime import FakeRuntime
from kit.storage import MemoryStorage

PLAN = "memory://lake/wh/db/events/.icekeep/plans/run-1"


@pytest.fixture
def runtime():
    return FakeRuntime()


@pytest.fixture
def storage(runtime):
    return MemoryStorage(runtime)


def taken(storage, runtime, job="other"):
    return take_claim(PLAN, job, storage, runtime, runtime.now_ms())


def test_one_of_two_gets_a_plan(storage, runtime):
    first = taken(storage, runtime, "expire_snapshots")
    with pytest.raises(ClaimedError, match="is in use by expire_snapshots,") as refused:
        taken(storage, runtime)
    assert refused.value.exit_status == 75
    first.check(storage, runtime)


def test_a_claim_is_not_lost_to_its_own_thread(runtime):
    """Which renews it between this thread's listing of the claims and its look at them."""

    class Renewed(MemoryStorage):
        meanwhile = staticmethod(lambda: None)

        def list(self, prefix_location):
            found = list(super().list(prefix_location))
            act, self.meanwhile = self.meanwhile, lambda: None
            act()
            yield from found

    storage = Renewed(runtime)
    claim = taken(storage, runtime)
    runtime.pass_ms(LEASE_MS // 2 + 1)
    storage.meanwhile = lambda: claim.check(storage, runtime)
    claim.check(storage, runtime)
    assert claim.number == 2


def test_of_two_who_look_at_the_same_moment_one_gets_it(storage, runtime):
    class Late(MemoryStorage):
        def list(self, prefix_location):
            yield from super().list(prefix_location)
            if not self.files:
                self.first = new_claim(PLAN, "faster", self, runtime)

    late = Late(runtime)
    with pytest.raises(ClaimedError, match="another run has just begun"):
        taken(late, runtime)
    late.first.check(late, runtime)


def test_a_claim_ends_when_nobody_renews_it(storage, runtime):
    first = taken(storage, runtime)
    runtime.pass_ms(LEASE_MS)
    with pytest.raises(ClaimedError):
        taken(storage, runtime)
    runtime.pass_ms(1)
    second = taken(storage, runtime, "second")
    second.check(storage, runtime)
    with pytest.raises(ClaimedError, match="taken over by second"):
        first.check(storage, runtime)


def test_whoever_works_renews_it_in_time(storage, runtime):
    first = taken(storage, runtime)
    for _ in range(10):
        runtime.pass_ms(LEASE_MS // 2 + 1)
        first.check(storage, runtime)
        with pytest.raises(ClaimedError):
            taken(storage, runtime)
    assert len([*storage.list(f"{PLAN}/{CLAIMS}")]) == 11


def test_tasks_of_one_run_renew_it_together(storage, runtime):
    first = taken(storage, runtime)
    one, other = (pickle.loads(pickle.dumps(first)).arrived(runtime) for _ in range(2))
    runtime.pass_ms(LEASE_MS - 1)
    one.check(storage, runtime)
    other.check(storage, runtime)
    first.check(storage, runtime)
    assert (one.number, other.number, first.number) == (2, 2, 2)


def test_a_released_plan_is_free_at_once_and_a_restore_is_known_until_a_run_goes_on(storage, runtime):
    with released(taken(storage, runtime, "restore"), storage, runtime) as first:
        assert last_work(PLAN, storage).restored_ms == runtime.now_ms()
    restored_ms = last_work(PLAN, storage).restored_ms
    assert restored_ms == runtime.now_ms()
    runtime.pass_ms(1000)
    with released(taken(storage, runtime), storage, runtime):
        assert last_work(PLAN, storage).restored_ms == restored_ms
    with released(taken(storage, runtime), storage, runtime) as going_on:
        going_on.restored_ms = 0
    assert last_work(PLAN, storage).restored_ms == 0
    second = taken(storage, runtime)
    assert second.preempted == ""
    with pytest.raises(ClaimedError):
        first.check(storage, runtime)
    first.release(storage)
    second.check(storage, runtime)


def test_a_run_that_fails_releases_and_one_that_dies_does_not(storage, runtime):
    class Killed(BaseException):
        pass

    for error, is_free in ((ValueError, True), (KeyboardInterrupt, True), (Killed, False)):
        with pytest.raises(error), released(taken(storage, runtime), storage, runtime):
            raise error
        if is_free:
            continue
        with pytest.raises(ClaimedError):
            taken(storage, runtime)


def test_a_restore_waits_for_its_turn_too_and_knows_of_whom_it_follows(storage, runtime):
    first = taken(storage, runtime, "expire_snapshots")
    with pytest.raises(ClaimedError):
        taken(storage, runtime, RESTORE)
    runtime.pass_ms(LEASE_MS + 1)
    second = taken(storage, runtime, RESTORE)
    assert second.preempted == "expire_snapshots"
    with pytest.raises(ClaimedError):
        first.check(storage, runtime)


def test_a_plan_that_is_gone_is_nobody_s(storage, runtime):
    first = taken(storage, runtime)
    storage.delete_many([info.location for info in storage.list(PLAN)])
    with pytest.raises(ClaimedError, match="is gone"):
        first.check(storage, runtime)


def test_the_claim_of_a_process_that_has_ended_on_this_machine_is_over_at_once(storage, runtime, monkeypatch):
    own = process_name()
    where, _, _ = own.rpartition("@")
    monkeypatch.setattr("icekeep.maintenance.delete.lease.process_name", lambda: f"{where}@1")
    taken(storage, runtime)
    monkeypatch.undo()
    # What it had begun may take effect all the same.
    assert taken(storage, runtime).preempted == "other"


def test_only_a_process_of_this_machine_and_container_is_known_to_have_ended():
    own = process_name()
    where, _, began = own.rpartition("@")
    assert own
    assert not has_ended(own)
    assert has_ended(f"{where}@1")
    assert has_ended(f"{own.rpartition(':')[0]}:{2**22 + 1}@{began}")
    assert not has_ended(own.replace("boot:", "boot:another-"))
    assert not has_ended("")


def test_what_a_run_is_about_to_delete_for_good_all_later_claims_repeat(storage, runtime):
    """A call may take effect long after its run has lost the plan; a restore must know of it."""
    first = taken(storage, runtime, "expire_snapshots")
    assert not last_work(PLAN, storage).deletes
    first.begin_deleting(storage, runtime)
    assert last_work(PLAN, storage).deletes
    runtime.pass_ms(LEASE_MS + 1)
    second = taken(storage, runtime, "restore")
    assert second.deletes
    second.release(storage)
    assert taken(storage, runtime, "expire_snapshots").deletes


def test_a_claim_that_is_lost_begins_no_deletion(storage, runtime):
    first = taken(storage, runtime, "expire_snapshots")
    runtime.pass_ms(LEASE_MS + 1)
    assert not taken(storage, runtime, "restore").deletes
    with pytest.raises(ClaimedError):
        first.begin_deleting(storage, runtime)
    assert not last_work(PLAN, storage).deletes


def test_a_claim_that_is_renewed_at_the_same_moment_begins_a_deletion_all_the_same(runtime):
    class Renewing(MemoryStorage):
        """A thread of the run renews the claim between the look at it and the next claim."""

        claim = None

        def create(self, location, data):
            claim, self.claim = self.claim, None
            if claim is not None:
                runtime.pass_ms(LEASE_MS // 2 + 1)
                claim.check(self, runtime)
            super().create(location, data)

    storage = Renewing(runtime)
    claim = taken(storage, runtime, "expire_snapshots")
    storage.claim = claim
    claim.begin_deleting(storage, runtime)
    assert (claim.deletes, claim.number, last_work(PLAN, storage).deletes) == (True, 3, True)


def test_a_process_that_was_forked_is_not_called_as_its_parent_is(monkeypatch):
    """Whose end would else be taken for its own, by whoever looks at its claims."""
    name = process_name()
    monkeypatch.setattr("os.getpid", os.getppid)
    assert process_name() not in ("", name)
