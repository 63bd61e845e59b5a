import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, MissingFileError
from icekeep.maintenance.delete.plan_file import (
    BEFORE,
    FILES,
    HEAD,
    ClassifiedGarbage,
    DeletionPlan,
    PlanDraft,
    delete_plan,
    digest_of,
    plan_hash,
    plans_below,
    read_part,
    read_plan,
    trash_location,
    write_head,
    write_part,
)
from icekeep.maintenance.delete.reachable import FileKind, GarbageFile, garbage_table
from kit.cases import for_each
from kit.memory_catalog import MemoryCatalog
from kit.storage import MemoryStorage
from kit.tables import memory_table

TABLE = "memory://lake/wh/db/events"
DIRECTORY = f"{TABLE}/.icekeep/plans/run-1"


def file(name, kind=FileKind.DATA, size_bytes=10):
    return GarbageFile(kind, f"{TABLE}/data/{name}", size_bytes)


def plan(parts=(), directory=DIRECTORY, **told):
    values = {
        "job": "expire_snapshots",
        "run": "run-1",
        "directory": directory,
        "table": "db.events",
        "table_uuid": "u",
        "table_location": TABLE,
        "metadata_location": f"{TABLE}/metadata/v3.metadata.json",
        "created_ms": 1,
        "not_before_ms": 2,
        "trash_until_ms": None,
        "snapshot_ids": (1, 2),
        "ref_names": ("old",),
        "outside_count": 3,
        "parts": tuple(parts),
        "hash": "h",
    }
    return DeletionPlan(**values | told)


files = st.lists(
    st.builds(
        GarbageFile,
        st.sampled_from(FileKind),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).map(lambda t: f"{TABLE}/{t}"),
        st.none() | st.integers(0, 2**62),
    ),
    max_size=12,
)


@given(files)
def test_a_part_is_read_as_it_was_written(chosen):
    storage, table = MemoryStorage(), garbage_table(chosen)
    part = write_part(table, f"{DIRECTORY}/files-0.jsonl", storage)
    assert read_part(part, storage).equals(table)
    assert part.digest == digest_of(table)
    assert part.files_count == len(chosen)


def test_a_part_is_a_line_of_json_for_each_file():
    storage = MemoryStorage()
    part = write_part(garbage_table([file("a"), file("b", FileKind.MANIFEST, None)]), f"{DIRECTORY}/f", storage)
    assert [msgspec.json.decode(line) for line in storage.read(part.location).splitlines()] == [
        {"kind": "data file", "location": f"{TABLE}/data/a", "size-in-bytes": 10},
        {"kind": "manifest", "location": f"{TABLE}/data/b", "size-in-bytes": None},
    ]


@given(files, files)
def test_the_hash_is_that_of_the_set_in_whatever_order_and_parts(some, others):
    def hashed(*parts):
        return plan_hash("job", "u", ((2, 1), ("b", "a")), [digest_of(garbage_table(part)) for part in parts])

    assert hashed(some, others) == hashed([*reversed([*some, *others])]) == hashed(others, some)
    assert hashed(some, others) != hashed(some, others, [file("one more")])


@for_each(
    "differs",
    [
        {"job": "drop"},
        {"snapshot_ids": (2,)},
        {"ref_names": ("r",)},
        {"schema_ids": (1,)},
        {"spec_ids": (1,)},
        {"accepted": ("r",)},
        {"grace_ms": 1},
        {"trash_ms": 1},
    ],
)
def test_the_hash_is_of_all_that_a_run_does_and_how_it_does_it(differs):
    draft = PlanDraft(job="expire_snapshots", run="one", snapshot_ids=(1,))
    other = replace(draft, run="another", roots=("file:///d",), **differs)
    found, table = ClassifiedGarbage(), memory_table(MemoryCatalog())
    assert found.hash(table, other.at(5)) != found.hash(table, draft)
    assert found.hash(table, replace(other, **{name: getattr(draft, name) for name in differs})) == found.hash(
        table, draft
    )
    elsewhere = replace(table, metadata=replace(table.metadata, table_uuid="v"))
    assert found.hash(elsewhere, draft) != found.hash(table, draft)


@for_each(
    "change",
    [
        lambda data: data.replace(b"data/a", b"data/c"),
        lambda data: data.splitlines(keepends=True)[0],
        lambda data: data + data.splitlines(keepends=True)[0],
        lambda data: data.replace(b'"kind":"data file"', b'"kind":"manifest"', 1),
        lambda data: data[:-5],
        lambda data: b"[]\n",
        lambda data: b'{"kind": 1}\n',
    ],
)
def test_a_part_that_was_changed_is_not_believed(change):
    storage = MemoryStorage()
    part = write_part(garbage_table([file("a"), file("b")]), f"{DIRECTORY}/f", storage)
    data = storage.read(part.location)
    storage.delete_many([part.location])
    storage.create(part.location, change(data))
    with pytest.raises(InvalidTableError, match=f"plan {part.location!r}"):
        read_part(part, storage)


def test_a_plan_counts_from_when_its_head_is_there_until_it_is_forgotten():
    storage = MemoryStorage()
    part = write_part(garbage_table([file("a")]), f"{DIRECTORY}/f", storage)
    storage.create(f"{DIRECTORY}/{BEFORE}", b"{}")
    above = DIRECTORY.rsplit("/", 1)[0]
    assert [*plans_below(above, storage)] == []
    with pytest.raises(MissingFileError):
        read_plan(DIRECTORY, storage)
    written = plan([part])
    write_head(written, storage)
    assert [*plans_below(above, storage)] == [DIRECTORY]
    assert read_plan(DIRECTORY, storage) == written
    delete_plan(written, storage)
    assert storage.files == {}


def test_what_is_in_the_trash_outlives_its_plan():
    storage = MemoryStorage()
    written = plan(directory=f"{TABLE}/.icekeep/trash/run-1", trash_until_ms=9)
    write_head(written, storage)
    moved = trash_location(written, f"{TABLE}/data/a")
    storage.create(moved, b"rows")
    delete_plan(written, storage)
    assert [*storage.files] == [moved] == [f"{written.directory}/{FILES}/data/a"]


def test_a_head_elsewhere_than_it_says_is_not_believed():
    storage = MemoryStorage()
    head = msgspec.json.encode(plan(directory=f"{TABLE}/.icekeep/plans/another"))
    storage.create(f"{DIRECTORY}/{HEAD}", head)
    with pytest.raises(InvalidTableError, match="says that it lies in"):
        read_plan(DIRECTORY, storage)


def test_a_head_that_is_none_is_named():
    storage = MemoryStorage()
    storage.create(f"{DIRECTORY}/{HEAD}", b"{")
    with pytest.raises(InvalidTableError, match=r"plan\.json"):
        read_plan(DIRECTORY, storage)


@given(st.lists(st.sampled_from(["a", "b", "..", ".", "", "x y", "%2F"]), min_size=1, max_size=5).map("/".join))
def test_no_two_files_have_one_place_in_the_trash_and_none_leaves_it(path):
    written = plan(directory=f"{TABLE}/.icekeep/trash/run-1", trash_until_ms=9)
    place = trash_location(written, f"{TABLE}/data/{path}")
    assert place.startswith(f"{written.directory}/{FILES}/")
    assert ".." not in place.split("/")
    other = trash_location(written, f"memory://other/{path}/z")
    assert other.startswith(f"{written.directory}/{FILES}/_elsewhere/memory/other/")
