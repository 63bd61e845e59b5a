"""A run finds the name of a file that it was to write taken: the file there is another's, and the run never deletes it.

Each file that a run writes is tried, but for those in its own directories, where everything is its own. As on object stores the
name is found taken when the file is complete, and not before.
"""

from contextlib import contextmanager, suppress
from itertools import count

import pyarrow as pa
import pytest

from icekeep.errors import IcekeepError
from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.options import write_options
from icekeep.formats.writer import DataFileWriter
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.tables.verbs import append, create_table
from kit.cases import for_each
from kit.deletes import data_files, delete_equal, delete_positions
from kit.lake import EVENTS, SCHEMA, events
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime, no_spark
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
def test_what_has_the_name_of_a_file_that_a_run_was_to_write_stays(run, before, version, file_format):
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
