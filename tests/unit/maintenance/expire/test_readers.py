"""Checkpoints as Spark writes them, in memory: where their streams are, and what an expiration does about them."""

import json

import pytest

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import OptionError, UnavailableError
from icekeep.events import Warned
from icekeep.maintenance.expire.checkpoints import checkpoint_positions
from icekeep.maintenance.expire.job import expire_snapshots, plan_expire_snapshots
from icekeep.maintenance.why.fate import kept_until
from icekeep.policies.table_properties import settings_of_properties
from icekeep.spec.types import DAY_MS
from kit.changes import Recorder
from kit.job_world import World
from kit.runtime import no_spark

AT = "memory://streams/orders"
KNOWN = range(1, 10)
KAFKA = '{"topic":{"0":23}}'


def offset(snapshot_id, **changes):
    """As `StreamingOffset` of Iceberg Java 1.12 writes it."""
    return json.dumps({"version": 1, "snapshot_id": snapshot_id, "position": 2, "scan_all_files": False, **changes})


def put(storage, path, text):
    put_bytes(storage, path, text.encode())


def put_bytes(storage, path, data):
    storage.delete_many([f"{AT}/{path}"])
    storage.create(f"{AT}/{path}", data)


def checkpoint(storage, *batches, done=None, began=1):
    """A checkpoint whose batches end at some offsets, all of them done but for the last where `done` says so."""
    put(storage, "metadata", '{"id":"q"}')
    put(storage, "sources/0/offsets/0", offset(began))
    for number, lines in enumerate(batches):
        lines = (lines,) if isinstance(lines, str) else lines
        put(storage, f"offsets/{number}", "\n".join(["v1", '{"batchWatermarkMs":0}', *lines]))
        if number < (len(batches) if done is None else done):
            put(storage, f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def world():
    world = World(2)
    for number in range(5):
        world.append(number)
    return world


@pytest.fixture
def storage(world):
    return world.catalog.storage


def positions(storage):
    return [(one.snapshot_id, one.problem) for one in checkpoint_positions(storage, [AT], KNOWN)]


def test_last_batch_that_is_done_says_where_the_stream_is(storage):
    checkpoint(storage, offset(1), offset(3), offset(5), done=2)
    [one] = checkpoint_positions(storage, [f"{AT}/"], KNOWN)
    assert (one.name, one.snapshot_id, one.began_id, one.problem) == (AT, 3, 1, "")
    assert one.moved_ms == storage.head(f"{AT}/commits/1").modified_ms


def test_before_any_batch_is_done_it_is_where_it_began(storage):
    checkpoint(storage, offset(5), done=0, began=2)
    assert positions(storage) == [(2, "")]
    checkpoint(storage, offset(5), done=0, began=-1)
    assert positions(storage) == [(None, "")]


def test_sources_of_other_kinds_and_tables_are_passed_over(storage):
    checkpoint(storage, (KAFKA, offset(77), offset(4)))
    assert positions(storage) == [(4, "")]
    checkpoint(storage, (offset(2), offset(4)))
    put(storage, "sources/1/offsets/0", offset(1))
    assert positions(storage) == [(2, ""), (4, "")]
    # Where none is of this table its snapshot may have expired.
    checkpoint(storage, offset(77))
    assert positions(storage) == [(77, "")]


def test_source_without_an_offset_is_where_it_began(storage):
    checkpoint(storage, "-", began=3)
    assert positions(storage) == [(3, "")]


def test_begin_that_is_gone_is_not_needed_once_a_batch_is_done(storage):
    checkpoint(storage, offset(3))
    storage.delete_many([f"{AT}/sources/0/offsets/0"])
    [one] = checkpoint_positions(storage, [AT], KNOWN)
    assert (one.snapshot_id, one.began_id, one.problem) == (3, None, "")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda s: s.delete_many([f"{AT}/offsets/{n}" for n in (0, 1)]), "is that the directory of a checkpoint"),
        (lambda s: s.delete_many([f"{AT}/offsets/1"]), "batch 1 is done, and its offset is not in"),
        (lambda s: put(s, "offsets/1", "v2\n{}\n{}"), "a log of version 'v2'"),
        (lambda s: put(s, "offsets/1", ""), "a log of version ''"),
        (lambda s: put(s, "offsets/1", f"v1\n{{}}\n{KAFKA}"), "has no offset of a source of Iceberg"),
        (lambda s: put(s, "offsets/1", f"v1\n{{}}\n{offset(3, version=2)}"), "an offset of version 2"),
        (lambda s: put(s, "offsets/1", "v1\n{}\n{broken"), "malformed"),
        (lambda s: put(s, "offsets/1", 'v1\n{}\n{"snapshot_id": "x"}'), "snapshot_id"),
        (lambda s: put_bytes(s, "offsets/1", b"\xff\xfe"), "decode"),
    ],
)
def test_checkpoint_that_cannot_be_read_says_why(world, storage, spoil, says):
    checkpoint(storage, offset(1), offset(3))
    spoil(storage)
    [(snapshot_id, problem)] = positions(storage)
    assert snapshot_id is None
    assert says in problem
    assert "\n" not in problem
    before, told = world.state(), Recorder()
    done = expired(world, listener=told)
    assert (done.expired_snapshots_count, done.readers[0].status) == (0, "unreadable")
    assert world.state()[1] == before[1]
    assert any("no snapshot expires" in event.message for event in told.events if isinstance(event, Warned))


def test_store_out_of_reach_keeps_everything(world, storage):
    checkpoint(storage, offset(1))

    def fails(operation, location):
        if location.startswith(AT):
            raise UnavailableError("the store does not answer")

    world.storage.before = fails
    done = expired(world)
    assert (done.expired_snapshots_count, done.readers[0].status) == (0, "unreadable")
    assert "the store does not answer" in done.readers[0].problem


def expired(world, job=expire_snapshots, **told):
    options = {"readers.spark-checkpoints": AT, **told.pop("options", {})}
    return job(world.table, no_spark, older_than=2**62, retain_last=1, trash=0, options=options, **told)


def ids(world):
    return [s.snapshot_id for s in world.table.metadata.snapshots]


def test_plan_names_the_readers_and_the_run_keeps_what_they_need(world, storage):
    checkpoint(storage, offset(ids(world)[2]), began=ids(world)[0])
    told = Recorder()
    plan = expired(world, plan_expire_snapshots, listener=told)
    assert any("availableNow" in event.message for event in told.events if isinstance(event, Warned))
    assert (plan.expired_snapshots_count, len(plan.kept_for_readers), plan.readers[0].status) == (2, 2, "waited_for")
    kept = ids(world)[2:]
    done = expired(world)
    assert (done.kept_for_readers, done.readers) == (plan.kept_for_readers, plan.readers)
    assert ids(world) == kept
    assert world.lost_files() == set()


def test_reader_that_lags_too_long_is_named_and_not_waited_for(world, storage):
    checkpoint(storage, offset(ids(world)[2]))
    world.runtime.pass_ms(3 * DAY_MS)
    told = Recorder()
    assert expired(world, plan_expire_snapshots).readers[0].status == "waited_for"
    done = expired(world, options={"readers.max-lag": "2d"}, listener=told)
    assert (done.readers[0].status, len(ids(world))) == ("too_far_behind", 1)
    assert any("nothing is kept for reader" in event.message for event in told.events if isinstance(event, Warned))


def test_reader_that_registers_meanwhile_is_kept_its_snapshots(world, storage):
    """Its property lands between the plan and the commit."""
    first, *_ = ids(world)

    def registers_first(operation, location):
        if operation == "swap":
            world.storage.before = lambda *_: None
            commit(world.table, ChangeProperties(updates={"icekeep.consumer.late.snapshot-id": str(first)}))

    world.storage.before = registers_first
    done = expire_snapshots(world.table, no_spark, older_than=2**62, retain_last=1, trash=0)
    assert (done.expired_snapshots_count, len(ids(world))) == (0, 5)
    assert world.lost_files() == set()


def test_why_says_when_a_reader_lets_go(world):
    first, *_ = ids(world)
    table = commit(world.table, ChangeProperties(updates={"icekeep.consumer.b.snapshot-id": str(first)})).table
    now_ms = world.runtime.now_ms() + 6 * DAY_MS
    kept = kept_until(table.metadata, table.catalog.rules, frozenset({first}), now_ms)
    assert kept.until_ms == table.metadata.snapshots[1].timestamp_ms + 7 * DAY_MS + 1


def test_registration_is_no_setting_of_a_policy():
    assert settings_of_properties({"icekeep.consumer.b.snapshot-id": "1"}).problems == ()


@pytest.mark.parametrize("given", [{"readers.max-lag": "soon"}, {"readers.spark-checkpoints": "s3//b"}])
def test_options_that_cannot_be_meant_are_refused(world, given):
    with pytest.raises(OptionError):
        expired(world, options=given)
