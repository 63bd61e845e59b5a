"""One file that metadata spells in two ways is one file for whoever deletes: it stays as long as anything leads to it."""

from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import SafetyError
from icekeep.events import Warned
from icekeep.maintenance.delete import run as deleting
from icekeep.maintenance.delete.garbage import garbage_of, is_garbage
from icekeep.maintenance.delete.reachable import FileKind, GarbageFile, garbage_table, read_reached
from icekeep.maintenance.expire.job import plan_expire_snapshots
from icekeep.maintenance.orphans.compare import compare
from icekeep.maintenance.orphans.listing import keyed_rows
from icekeep.maintenance.orphans.metadata import reached_by
from icekeep.spec.snapshots import MetadataLogEntry
from icekeep.storage.location_keys import AS_SPELLED
from icekeep.storage.locations import loose_path
from kit.cases import cases
from kit.expired_tables import ExpiredWorld, OneByOne
from kit.reclaim_histories import OneForAll
from kit.runtime import no_spark, with_runtime
from kit.tables import add, data_file, memory_table

pytestmark = pytest.mark.slow

PATH = "/wh/db/events/data/b"
SPELLINGS = (
    f"memory://LAKE{PATH}",
    f"memory://lake:8020{PATH}",
    f"memory://{PATH}",
    f"memory:{PATH}",
    f"other://elsewhere{PATH}",
    f"s3://lake{PATH}",
    f"s3a://lake{PATH}",
    f"abfss://lake@account.dfs.core.windows.net{PATH}",
    f"wasbs://lake@account.blob.core.windows.net{PATH}",
    f"file://{PATH}",
    f"file:{PATH}",
    PATH,
    "memory://lake//wh/db///events/data//b",
    "memory://lake/wh/db/events/data/./b",
    "memory://lake/wh/db/events/other/../data/b",
    "memory://lake/wh/db/events/d%61ta/b",
    "memory://lake/wh/db/events/DATA/b",
)
"""What a client may take for `memory://lake/wh/db/events/data/b`, or for another file: nobody can tell by the letters."""


class OneStoreWorld(ExpiredWorld):
    """The same where every scheme and authority leads to the one store."""

    def __init__(self) -> None:
        super().__init__(lambda memory: OneByOne(OneForAll(self.runtime, memory)))

    def adopt_as(self, spelling: str) -> None:
        """Another tool appends the file `b`, which no newer snapshot has, by a location of its own."""
        add(self.table, replace(data_file("b"), file_path=spelling))
        self.runtime.pass_ms(1000)

    def warnings(self) -> list[str]:
        return [event.message for event in self.heard.events if isinstance(event, Warned)]


@pytest.fixture
def world():
    return OneStoreWorld()


@pytest.mark.parametrize("trash", [0, 3])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_that_is_retained_by_another_name_does_not_expire(world, spelling, trash):
    world.adopt_as(spelling)
    result = world.expire(trash=trash)
    assert world.data() == ["ab", "b", "c"]
    assert (result.status, result.deleted_data_files_count) == ("done", 1)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_later_run_keeps_a_file_back_by_another_name(world, spelling):
    world.expire(options={"grace": "1h"})
    world.adopt_as(spelling)
    world.pass_days(1)
    assert world.finish().finished_files_count == 6
    assert world.data() == ["ab", "b", "c"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_file_readded_under_another_name_is_kept(world, spelling, monkeypatch):
    """Checked again before each call, while other files are deleted."""
    monkeypatch.setattr(deleting, "CALL_FILES", 1)
    world.once(lambda: world.adopt_as(spelling), "delete_many", "/data/a")
    world.expire()
    assert world.data() == ["ab", "b", "c"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_that_is_live_by_another_name_is_no_orphan(world, spelling):
    world.expire(older_than=0, retain_last=100)
    world.adopt_as(spelling)
    world.pass_days(4)
    with suppress(SafetyError):
        world.remove_orphans()
    assert world.data() == ["a", "ab", "b", "c"]


_FILES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(SPELLINGS)), max_size=5)


@cases(100)
@given(live=_FILES, named=_FILES, asked=_FILES)
def test_all_who_delete_agree_on_what_the_table_leads_to(live, named, asked):
    """Expiration, whoever finishes its plans, and orphan removal; by content and by name, in whatever spelling."""

    def spelled(some):
        return [f"{spelling}{number}" for number, spelling in dict.fromkeys(some)]

    table = memory_table()
    for location in spelled(live):
        table = add(table, replace(data_file("b"), file_path=location))
    reached = reached_by(table, no_spark, trust_manifest_list=False)
    others = garbage_table(GarbageFile(FileKind.STATISTICS, location) for location in spelled(named))
    reached = replace(reached, named=pa.concat_tables([reached.named, others]))
    files = garbage_table(GarbageFile(FileKind.DATA, location) for location in spelled(asked))

    kept = {number for number, _ in (*live, *named)}
    left = [
        location
        for (number, _), location in zip(dict.fromkeys(asked), spelled(asked), strict=True)
        if number not in kept
    ]
    sizes = pa.nulls(files.num_rows, pa.int64())
    rows = keyed_rows(files["location"].combine_chunks(), sizes, sizes, AS_SPELLED)
    assert files.filter(pa.array(is_garbage(files, reached, no_spark)))["location"].to_pylist() == left
    compared = compare(pa.Table.from_batches([rows]), rows.num_rows, reached, AS_SPELLED, no_spark, None)
    assert compared.unnamed["location"].to_pylist() == left
    by_name = garbage_of(replace(reached, manifests=(), named=files), replace(reached, manifests=()), no_spark)
    assert {loose_path(at)[-1] for at in by_name.named["location"].to_pylist()} == {
        str(number) for number, _ in asked if number not in {number for number, _ in named}
    }


@cases(50)
@given(gone=_FILES, live=_FILES)
def test_expired_manifests_are_compared_by_all_spellings(gone, live):
    def entries(some):
        table = memory_table()
        for number, spelling in dict.fromkeys(some):
            table = add(table, replace(data_file("b"), file_path=f"{spelling}{number}"))
        return reached_by(table, no_spark, trust_manifest_list=False)

    found = garbage_of(entries(gone), entries(live), no_spark)
    left = [] if found.content is None else found.content["location"].to_pylist()
    assert {loose_path(location)[-1] for location in left} == {
        str(number) for number, _ in gone if number not in {number for number, _ in live}
    }


def test_file_kept_for_another_spelling_is_reported(world):
    """The warning names both spellings and says what to delete by hand."""
    world.adopt_as(f"other://elsewhere{PATH}")
    plan_expire_snapshots(
        with_runtime(world.table, world.runtime),
        no_spark,
        older_than=world.runtime.now_ms(),
        retain_last=1,
        listener=world.heard,
    )
    world.expire()
    [planned, told] = world.warnings()
    assert planned == told
    assert told.startswith("1 file of what expires stays")
    assert f"'memory://lake{PATH}' and 'other://elsewhere{PATH}' among them" in told
    assert "delete the first of each by hand" in told


@pytest.mark.parametrize("spelling", [f"memory:{PATH}", f"memory://lake{PATH}", "memory://lake/wh/db/events/data//b"])
def test_of_spellings_that_are_certain_nothing_is_said(world, spelling):
    world.adopt_as(spelling)
    world.expire()
    assert world.warnings() == []


@pytest.mark.parametrize("location", ["", "metadata/v1.metadata.json", "s3:metadata/v1.metadata.json"])
def test_a_log_that_names_no_location(world, location):
    """It leads to no file that could be opened; but nobody knows of which file it should tell."""
    entry = MetadataLogEntry(timestamp_ms=0, metadata_file=location)
    odd = replace(world.table.metadata, metadata_log=(entry, *world.table.metadata.metadata_log))
    found = read_reached(odd, world.table.metadata_location, world.storage, no_spark, trust_manifest_list=False)
    assert location not in found.named["location"].to_pylist()
    assert garbage_of(found, found, no_spark).named.num_rows == 0
    with pytest.raises(
        SafetyError, match=r"nothing is deleted, since not everything can be read: location .* is relative"
    ):
        reached_by(replace(world.table, metadata=odd), no_spark, trust_manifest_list=False)


def test_statistics_that_are_at_no_location_stop_the_run(world):
    file = GarbageFile(FileKind.STATISTICS, "stats.puffin")
    found = read_reached(
        world.table.metadata, world.table.metadata_location, world.storage, no_spark, trust_manifest_list=False
    )
    odd = replace(found, named=garbage_table([file]))
    for expired, retained in ((odd, found), (found, odd)):
        with pytest.raises(SafetyError, match="nothing is deleted, since not everything can be read"):
            garbage_of(expired, retained, no_spark)


def test_trash_file_in_use_by_the_table_is_not_deleted(world):
    """Whoever missed a file and found it there may have added it as it lies."""
    world.expire(trash=3)
    [trashed] = [at for at in world.memory.files if at.endswith("/files/data/b")]
    world.adopt_as(trashed)
    world.pass_days(5)
    assert world.finish(trash=3).status == "done"
    assert trashed in world.memory.files
    assert any(f"in the trash, where they lie, {trashed!r} among them" in told for told in world.warnings())


def test_a_file_added_in_the_trash_while_it_is_emptied(world, monkeypatch):
    monkeypatch.setattr(deleting, "CALL_FILES", 1)
    world.expire(trash=3)
    [trashed] = [at for at in world.memory.files if at.endswith("/files/data/b")]
    world.pass_days(5)
    world.once(lambda: world.adopt_as(trashed), "delete_many", "/files/data/a")
    world.finish(trash=3)
    assert trashed in world.memory.files
