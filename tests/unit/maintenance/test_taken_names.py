"""A run finds the name of a file that it was to write taken: the file there is another's, and the run never deletes it.

Each file that a run writes is tried, but for those in its own directories, where everything is its own. As on object stores the
name is found taken when the file is complete, and not before.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import msgspec
import pyarrow as pa
import pytest

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt, Change
from icekeep.commit.changes.snapshots import DropRef
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import ConflictError, IcekeepError, SafetyError
from icekeep.events import Event, StepStarted
from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.options import write_options
from icekeep.formats.writer import DataFileWriter
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.expire import run as expiration
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.rewrite import run as runs
from icekeep.runtime import SYSTEM
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import SetProperties, Update
from icekeep.tables.verbs import append, create_table, upgrade_format_version
from kit.cases import for_each
from kit.changes import Recorder
from kit.deletes import data_files, delete_equal, delete_positions
from kit.lake import EVENTS, SCHEMA, Lake, events
from kit.memory_catalog import MemoryCatalog
from kit.numbered_rows import gone, ids_of, made
from kit.runtime import FakeRuntime, no_spark, with_runtime
from kit.storage import HookedStorage, MemoryStorage

ANOTHERS = b"another's"


class TakenStorage(HookedStorage):
    """Counts files that are made; at the name of the one with the number `taken` another's file comes to be just before."""

    def __init__(self, inner):
        super().__init__(inner)
        self.count, self.taken, self.location = 0, None, ""

    @contextmanager
    def write(self, location):
        with super().write(location) as stream:
            yield stream
            self._take(location)

    def create(self, location, data):
        self._take(location)
        super().create(location, data)

    def take(self, number):
        self.count, self.taken, self.location = 0, number, ""

    def _take(self, location):
        if "/.icekeep/" in location:
            return
        if self.count == self.taken:
            self.location = location
            self.inner.files[location] = (ANOTHERS, self.inner.runtime.now_ms())
        self.count += 1


class World:
    def __init__(self, format_version=2, file_format="parquet"):
        self.runtime = FakeRuntime()
        self.storage = TakenStorage(MemoryStorage(self.runtime))
        self.catalog = MemoryCatalog(self.storage, self.runtime)
        self.catalog.create_namespace(EVENTS[:-1])
        properties = {"write.format.default": file_format, "write.delete.format.default": file_format}
        create_table(self.catalog, EVENTS, SCHEMA, properties=properties, format_version=format_version)
        for number in range(2):
            append(self.table, [events(number)])
        self.runtime.pass_ms(1000)

    @property
    def table(self):
        return self.catalog.load(EVENTS)


def appended(world):
    append(world.table, [events(5), events(6)])


def compacted(world):
    compact(world.table, no_spark, options={"rewrite-all": "true"})


def compacted_in_order(world):
    compact(world.table, no_spark, strategy="sort", sort_order="id", options={"rewrite-all": "true"})


def with_position_deletes(world):
    files = data_files(world.table)
    for position in (1, 2):
        delete_positions(world.table, [(files[0].file_path, position)])


def position_deletes_rewritten(world):
    rewrite_position_deletes(world.table, no_spark, options={"rewrite-all": "true"})


def with_equality_deletes(world):
    delete_equal(world.table, pa.table({"id": [3]}), ["id"], like=data_files(world.table)[0])


def equality_deletes_converted(world):
    convert_equality_deletes(world.table, no_spark)


def manifests_rewritten(world):
    rewrite_manifests(world.table, no_spark, sort_by="id")


def nothing(world):
    pass


@pytest.mark.slow
@for_each(
    "run, before, version, file_format",
    [
        (appended, nothing, 2, "orc"),
        (compacted, with_position_deletes, 2, "parquet"),
        (compacted_in_order, nothing, 2, "parquet"),
        (position_deletes_rewritten, with_position_deletes, 2, "avro"),
        (equality_deletes_converted, with_equality_deletes, 2, "parquet"),
        (manifests_rewritten, nothing, 2, "parquet"),
    ],
)
def test_foreign_file_under_a_planned_name_stays(run, before, version, file_format):
    world = World(version, file_format)
    before(world)
    storage, files, pointer = world.storage, dict(world.storage.inner.files), dict(world.catalog._locations)
    for taken in count():
        storage.inner.files, world.catalog._locations = dict(files), dict(pointer)
        storage.take(taken)
        with suppress(FileExistsError, IcekeepError):
            run(world)
        if not storage.location:
            break
        left = storage.inner.files.get(storage.location)
        assert left is not None, f"file {taken}, {storage.location!r}, is deleted"
        assert left[0] == ANOTHERS
    assert taken > 2, "it writes too few files"


@for_each("file_format, is_closed", [(one, closed) for one in ("parquet", "orc", "avro") for closed in (True, False)])
def test_a_writer_that_is_left_deletes_only_what_it_has_made(file_format, is_closed):
    """A block that ends without `close`, or by an error of its own, made no file under the name that was next."""
    world = World()
    metadata, locations = world.table.metadata, []

    def new_location():
        locations.append(f"memory://lake/wh/{len(locations)}")
        return locations[-1]

    options = write_options({"write.format.default": file_format}, metadata.schema)
    writer = DataFileWriter(world.storage, metadata.schema, options, new_location)
    with suppress(ZeroDivisionError), writer:
        writer.write(cast_to_schema(events(1), metadata.schema))
        writer.end_file()
        writer.write(cast_to_schema(events(2), metadata.schema))
        writer._flush()
        world.storage.inner.files[locations[1]] = (ANOTHERS, 0)
        if not is_closed:
            raise ZeroDivisionError
    assert locations[0] not in world.storage.inner.files
    assert world.storage.inner.files[locations[1]][0] == ANOTHERS


RETRIES = 2
PATIENT = {"commit__retry__num_retries": str(RETRIES), "commit__retry__min_wait_ms": "1"}


class Job(msgspec.Struct, frozen=True):
    """A job, a table that it has something to do in, and the module whose `commit` it calls."""

    fill: Callable[[Lake], Table]
    run: Callable[..., Any]
    module: Any
    arguments: dict[str, Any] = {}

    def __call__(self, table: Table, listener: Recorder, **arguments: Any) -> Any:
        return self.run(table, no_spark, listener=listener, **self.arguments | arguments)


def with_deletes_by_position(lake: Lake) -> Table:
    """The first row of a file is deleted in several files; there is a delete file in another partition, too."""
    table = made(lake, ("kind", "identity"), **PATIENT)
    first, other = (next(f.file_path for f in data_files(table) if f"kind={kind}" in f.file_path) for kind in "ba")
    for _ in range(5):
        table = delete_positions(table, [(first, 0)])
    return delete_positions(table, [(other, 9)])


def with_deletes_by_equality(lake: Lake) -> Table:
    return gone(made(lake, **PATIENT), 1)


def with_old_snapshots(lake: Lake) -> Table:
    table = with_deletes_by_equality(lake)
    compact(table, no_spark, options={"rewrite-all": "true", "remove-dangling-deletes": "true"})
    return lake.catalog.load(table.identifier)


ALL = {"rewrite-all": "true"}
JOBS = {
    "compact": Job(with_deletes_by_equality, compact, runs, {"options": ALL}),
    "rewrite_position_deletes": Job(with_deletes_by_position, rewrite_position_deletes, runs, {"options": ALL}),
    "convert_equality_deletes": Job(with_deletes_by_equality, convert_equality_deletes, runs),
    "rewrite_manifests": Job(with_deletes_by_equality, rewrite_manifests, runs),
    "expire_snapshots": Job(
        with_old_snapshots,
        expire_snapshots,
        expiration,
        {"older_than": SYSTEM.now_ms() + 10**9, "retain_last": 1, "trash": 0},
    ),
}
each_job = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


class Hindered(msgspec.Struct, frozen=True):
    """A change that somebody is in the way of, at the end of each attempt."""

    change: Change
    hinder: Callable[[], None]

    def apply(self, base: TableMetadata, attempt: Attempt) -> Sequence[Update]:
        assert self.change.apply(base, attempt)
        self.hinder()
        raise ConflictError("somebody is in the way")


class Others:
    """Hinder some of a job's commits, those of tags aside: the first `times`, but for as many as are `spared`."""

    def __init__(self, module: Any, patch: pytest.MonkeyPatch, times: int, spared: int = 0) -> None:
        self.bases: list[str] = []
        self.hinder: Callable[[], None] = lambda: None
        self.error: ConflictError | None = None
        self._commit = module.commit
        self._hindered = range(spared, spared + times)
        patch.setattr(module, "commit", self.commit)

    def commit(self, table: Table, change: Any, **named: Any) -> Any:
        if isinstance(change, runs._Pin | DropRef):
            return self._commit(table, change, **named)
        number = len(self.bases)
        self.bases.append(table.catalog.load(table.identifier).metadata_location)
        if number not in self._hindered:
            return self._commit(table, change, **named)
        if self.error is not None:
            raise self.error
        # Where nobody changed anything no plan would be made again for ever.
        table.catalog.swap(table.catalog.load(table.identifier), [], [SetProperties({"hindered": str(number)})])
        return self._commit(table, Hindered(change, self.hinder), **named)


def named_files(table: Table) -> set[Path]:
    """All that the snapshots of a table name."""
    reader = ManifestReader(table.storage)
    named: list[str] = []
    for snapshot in table.metadata.snapshots:
        assert snapshot.manifest_list is not None
        named.append(snapshot.manifest_list)
        for manifest in reader.manifests(snapshot):
            entries = reader.entries(manifest, table.metadata)
            named += [manifest.manifest_path, *(e.data_file.file_path for e in entries if e.is_live)]
    return {Path(urlparse(location).path) for location in named}


@pytest.fixture
def started(job: Job, lake: Lake) -> Table:
    """The table of a job, with waits that take no time."""
    table = with_runtime(job.fill(lake), FakeRuntime(now_ms=SYSTEM.now_ms(), seed=7))
    assert lake.content_on_disk() == named_files(table)
    return table


@each_job
@pytest.mark.parametrize("times", [1, RETRIES])
def test_what_others_hinder_is_planned_anew_and_done(
    job: Job, times: int, lake: Lake, started: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, listener, rows = Others(job.module, monkeypatch, times), Recorder(), ids_of(started)
    result = job(started, listener)
    assert getattr(result, "status", "done") == "done"
    assert len(others.bases) == times + 1
    assert len(listener.warnings) == times
    assert all(f"of {started.name!r} are planned again: somebody" in warning for warning in listener.warnings)
    after = lake.catalog.load(started.identifier)
    assert after.metadata_location not in others.bases
    assert ids_of(after) == rows
    assert lake.content_on_disk() == named_files(after)


@each_job
def test_what_others_hinder_for_ever_ends(
    job: Job, lake: Lake, started: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, listener = Others(job.module, monkeypatch, times=99), Recorder()
    before = lake.content_on_disk()
    with pytest.raises(ConflictError, match=rf"gave up after {RETRIES + 1} plans \(somebody is in the way") as raised:
        job(started, listener)
    assert (raised.value.facts["plans"], len(others.bases)) == (RETRIES + 1, RETRIES + 1)
    assert len(listener.warnings) == RETRIES
    assert lake.content_on_disk() == before
    after = lake.catalog.load(started.identifier).metadata
    assert (after.snapshots, after.refs) == (started.metadata.snapshots, started.metadata.refs)


@each_job
def test_exhausted_commit_retries_are_not_planned_again(
    job: Job, lake: Lake, started: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, listener = Others(job.module, monkeypatch, times=99), Recorder()
    others.error = ConflictError("others kept changing it: gave up after 3 attempts", attempts=3)
    before = lake.content_on_disk()
    with pytest.raises(ConflictError) as raised:
        job(started, listener)
    assert raised.value is others.error
    assert (len(others.bases), listener.warnings) == (1, [])
    assert lake.content_on_disk() == before


@each_job
def test_a_table_that_was_made_again_meanwhile_is_left_alone(
    job: Job, lake: Lake, started: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs would find something to do there, which nobody has asked them for."""
    others, listener, rows = Others(job.module, monkeypatch, times=1), Recorder(), ids_of(started)
    theirs: list[Table] = []

    def made_again() -> None:
        lake.catalog.drop(started.identifier)
        # The same files, history and references, under another identity.
        metadata = msgspec.structs.replace(started.metadata, table_uuid=str(SYSTEM.new_uuid()))
        theirs.append(lake.catalog.create(started.identifier, metadata))

    others.hinder = made_again
    with pytest.raises(SafetyError, match="is another table now"):
        job(started, listener)
    after = lake.catalog.load(started.identifier)
    assert after.metadata_location == theirs[0].metadata_location
    assert ids_of(after) == rows
    assert len(others.bases) == 1


class EndingAtPlan(Recorder):
    """Ends the job where the plan of a number begins."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def on(self, event: Event) -> None:
        super().on(event)
        if isinstance(event, StepStarted) and sum(event.step == one.step for one in self.steps) == self._number:
            raise SystemExit(130)

    @property
    def steps(self) -> list[StepStarted]:
        return [event for event in self.events if isinstance(event, StepStarted)]


@each_job
@pytest.mark.parametrize("number", [1, 2])
def test_a_job_that_ends_where_a_plan_begins(
    job: Job, number: int, lake: Lake, started: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first plan has written is kept for the second one, which may take it over."""
    Others(job.module, monkeypatch, times=1)
    before, listener = lake.content_on_disk(), EndingAtPlan(number)
    with pytest.raises(SystemExit):
        job(started, listener)
    assert lake.content_on_disk() == before
    assert lake.catalog.load(started.identifier).metadata.snapshots == started.metadata.snapshots


@pytest.mark.parametrize("job", [JOBS["compact"], JOBS["rewrite_position_deletes"]], ids=["compact", "positions"])
def test_what_is_hindered_for_ever_beside_what_landed(job: Job, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit of the run lands; of the other partition no commit does, however often it is planned."""
    table = with_runtime(with_deletes_by_position(lake), FakeRuntime(now_ms=SYSTEM.now_ms(), seed=7))
    others, listener, rows = Others(job.module, monkeypatch, times=99, spared=1), Recorder(), ids_of(table)
    options = ALL | {"partial-progress.enabled": "true", "partial-progress.max-commits": "2"}
    result = job(table, listener, options=options)
    rewritten, failed = (
        (result.rewritten_data_files_count, result.failed_data_files_count)
        if job.run is compact
        else (result.rewritten_delete_files_count, result.failed_delete_files_count)
    )
    assert (result.status, result.commits_count) == ("partial", 1)
    # Of a compaction's commit only groups are refused, of the other's the whole commit.
    assert result.failed_commits_count == (job.run is not compact)
    assert rewritten > 0
    assert failed > 0
    assert len(others.bases) == 1 + RETRIES + 1
    assert ["are planned again" in warning for warning in listener.warnings] == [True] * RETRIES + [False]
    assert f"the rest was not done: others kept changing {failed} d" in listener.warnings[-1]
    after = lake.catalog.load(table.identifier)
    assert ids_of(after) == rows
    assert lake.content_on_disk() == named_files(after)


@pytest.mark.parametrize("partial", ["true", "false"])
def test_changed_format_version_is_planned_again(lake: Lake, partial: str) -> None:
    """No file stands in the way, so all are planned again, whether or not they would have been committed in batches."""
    table = with_deletes_by_equality(lake)
    upgrade_format_version(table, 3)
    listener, rows = Recorder(), ids_of(table)
    result = compact(table, no_spark, options=ALL | {"partial-progress.enabled": partial}, listener=listener)
    count = len(data_files(table))
    assert (result.status, result.rewritten_data_files_count, result.planned_anew_files_count) == ("done", count, count)
    assert "format version 3 now" in listener.warnings[0]
    after = lake.catalog.load(table.identifier)
    assert ids_of(after) == rows
    assert lake.content_on_disk() == named_files(after)
