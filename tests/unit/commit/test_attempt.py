"""What an attempt writes, keeps of other writers' entries, and cleans up."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from icekeep.commit.attempt import Attempt, CommitFiles
from icekeep.commit.changes.files import AppendFiles, DeleteFiles
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.changes.snapshots import ExpireSnapshots
from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.outcome import remove_all, remove_unused
from icekeep.commit.retry import commit
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import IcekeepBug, NotFoundError, UnavailableError, UnsupportedError, UsageError
from icekeep.spec.avro import read_header, read_records
from icekeep.spec.manifests.read import read_manifest_header
from icekeep.spec.manifests.structs import ManifestEntry, Status
from icekeep.spec.manifests.write import carried_manifest
from icekeep.spec.retention import RetentionPolicy
from icekeep.spec.snapshots import Snapshot, SnapshotRef
from icekeep.spec.transforms import UnknownTransform
from icekeep.spec.updates import SetProperties, SetSnapshotRef
from kit.cases import for_each
from kit.changes import run
from kit.manifests import field_of, with_metadata, with_schema
from kit.memory_catalog import CONFLICTS, after
from kit.rewritten_manifests import live_in, staged
from kit.runtime import START_MS
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import (
    BY_KIND,
    EVENTS,
    add,
    data_file,
    entries_of,
    files,
    live,
    manifests_of,
    memory_table,
    raw,
    raw_list,
    set_ref,
    stored,
    swap,
)

SNAPSHOT_ID = 77


def attempt_on(table, commit_files=None, number=1):
    storage = table.storage
    return Attempt(
        table.metadata,
        number,
        SNAPSHOT_ID,
        commit_files or CommitFiles(storage, "c"),
        ManifestReader(storage),
        table.catalog.runtime,
    )


def added(*names, **keywords):
    return [ManifestEntry(status=Status.ADDED, data_file=file) for file in files(*names, **keywords)]


def reread(table, manifest):
    row = msgspec.structs.replace(manifest, sequence_number=1, min_sequence_number=1)
    return list(ManifestReader(table.storage).entries(row, table.metadata))


@pytest.mark.parametrize(("text", "size"), [(None, 8 << 20), ("1", 1), ("4096", 4096)])
def test_manifests_have_the_size_that_the_table_wants(text, size):
    properties = {} if text is None else {"commit.manifest.target-size-bytes": text}
    assert manifest_target_bytes(memory_table(**properties).metadata) == size


@for_each("text", ["0", "-1", "", "8MB", "1.5", "²"])
def test_a_size_that_is_none_is_refused(text):
    table = memory_table(**{"commit.manifest.target-size-bytes": text})
    with pytest.raises(UsageError, match=r"target-size-bytes' is .* a whole number, 1 or more"):
        manifest_target_bytes(table.metadata)


def test_entries_split_into_manifests_of_target_size(catalog):
    properties = {"commit.manifest.target-size-bytes": "40000", "write.manifest.compression-codec": "uncompressed"}
    table = memory_table(catalog, **properties)
    names = [f"{number:01000d}" for number in range(200)]
    manifests = attempt_on(table).write_manifests("k", iter(added(*names)), 0)
    # What is not encoded as a block of 64 KB yet has no size.
    *full, last = [m.manifest_length for m in manifests]
    assert len(full) == 3
    assert all(40_000 <= length <= 80_000 for length in full)
    assert last < 40_000
    assert len({m.manifest_path for m in manifests}) == 4
    found = [e.data_file.file_path.rsplit("/", 1)[-1] for m in manifests for e in reread(table, m)]
    assert found == names


def test_no_entries_make_no_manifest(catalog):
    before = stored(catalog)
    assert attempt_on(memory_table(catalog)).write_manifests("k", iter(()), 0) == ()
    assert {location for location in stored(catalog) - before if "-m" in location} == set()


def test_a_later_attempt_reuses_the_manifests_of_an_earlier_one(catalog):
    def entries_that_must_not_be_asked_for():
        raise AssertionError("asked")
        yield

    table = memory_table(catalog)
    commit_files = CommitFiles(HookedStorage(table.storage), "c")
    first = attempt_on(table, commit_files).write_manifests("k", iter(added("a")), 0)
    again = attempt_on(table, commit_files, 2).write_manifests("k", entries_that_must_not_be_asked_for(), 0)
    assert again == first
    assert commit_files.storage.inner.fired["write"] == 1
    other = attempt_on(table, commit_files, 2).write_manifests("another", iter(added("b")), 0)
    assert other[0].manifest_path != first[0].manifest_path


def test_an_entry_of_another_spec_is_a_bug(catalog):
    with pytest.raises(IcekeepBug, match="partition spec 1"):
        attempt_on(memory_table(catalog)).write_manifests(
            "k", [ManifestEntry(status=Status.ADDED, data_file=data_file("a", spec_id=1))], 0
        )


def test_a_snapshot_follows_the_head_of_its_branch(catalog):
    table = add(memory_table(catalog), "a")
    table = set_ref(table, "audit", table.metadata.current_snapshot_id, "branch")
    head = table.metadata.current_snapshot
    later = add(table, "b")
    audit = add(later, "c", branch="audit").metadata.head("audit")
    assert (audit.parent_snapshot_id, audit.sequence_number) == (head.snapshot_id, 3)
    assert live(catalog.load(EVENTS)) == {"a": 1, "b": 1}
    assert live(catalog.load(EVENTS), "audit") == {"a": 1, "c": 1}
    assert audit.schema_id == later.metadata.current_schema_id
    assert audit.operation == "append"


def test_a_first_snapshot_has_no_parent(catalog):
    snapshot = add(memory_table(catalog), "a").metadata.current_snapshot
    assert (snapshot.parent_snapshot_id, snapshot.sequence_number, snapshot.timestamp_ms) == (None, 1, START_MS)


@pytest.mark.parametrize("back_ms", [0, 1, 3_600_000])
def test_time_rises_even_if_the_clock_does_not(catalog, back_ms):
    """As version 4 wants it of each snapshot and its parent."""
    table = add(memory_table(catalog), "a")
    catalog.runtime.clock_ms -= back_ms
    second = add(table, "b").metadata
    assert (table.metadata.current_snapshot.timestamp_ms, second.current_snapshot.timestamp_ms) == (
        START_MS,
        START_MS + 1,
    )
    assert second.last_updated_ms == START_MS + 1
    catalog.runtime.clock_ms += back_ms + 5
    assert add(table, "c").metadata.current_snapshot.timestamp_ms == START_MS + 5


def test_snapshot_is_younger_than_its_parent(catalog):
    """The timestamp follows that of the parent snapshot, though last-updated-ms is lower."""
    table = add(memory_table(catalog), "a")
    parent = msgspec.structs.replace(table.metadata.current_snapshot, timestamp_ms=START_MS + 30_000)
    ahead = msgspec.structs.replace(table, metadata=msgspec.structs.replace(table.metadata, snapshots=(parent,)))
    snapshot, _ = attempt_on(ahead).snapshot_updates("append", [], SummaryBuilder())
    assert snapshot.snapshot.timestamp_ms == START_MS + 30_001


def test_a_snapshot_has_no_time_that_other_readers_cannot_hold(catalog):
    """One whose time came from a writer that took the greatest number for none."""
    table = add(memory_table(catalog), "a")
    parent = msgspec.structs.replace(table.metadata.current_snapshot, timestamp_ms=2**63 - 1)
    ahead = msgspec.structs.replace(table, metadata=msgspec.structs.replace(table.metadata, snapshots=(parent,)))
    snapshot, _ = attempt_on(ahead).snapshot_updates("append", [], SummaryBuilder())
    assert snapshot.snapshot.timestamp_ms == 2**63 - 1


def test_a_branch_keeps_its_retention(catalog):
    table = add(memory_table(catalog), "a")
    retention = {"min_snapshots_to_keep": 3, "max_snapshot_age_ms": 1000, "max_ref_age_ms": 5000}
    for name in ("main", "audit"):
        table = set_ref(table, name, table.metadata.current_snapshot_id, "branch", **retention)
        table = add(table, "b", branch=name)
        ref = table.metadata.refs[name]
        assert {key: getattr(ref, key) for key in retention} == retention
        assert ref.snapshot_id == table.metadata.snapshots[-1].snapshot_id


def test_a_branch_keeps_keys_that_we_do_not_know(catalog):
    table = add(memory_table(catalog), "a")
    ref = SnapshotRef(snapshot_id=table.metadata.current_snapshot_id, type="branch", extra={"x-owner": "them"})
    table = add(swap(table, SetSnapshotRef("main", ref)), "b")
    assert table.metadata.refs["main"].extra == {"x-owner": "them"}


def test_a_tag_cannot_be_committed_to_and_a_branch_must_be_there(catalog):
    table = add(memory_table(catalog), "a")
    table = set_ref(table, "v1", table.metadata.current_snapshot_id)
    before = stored(catalog)
    with pytest.raises(UsageError, match="'v1' is a tag"):
        add(table, "b", branch="v1")
    with pytest.raises(NotFoundError, match="no branch or tag 'nowhere'"):
        add(table, "b", branch="nowhere")
    assert stored(catalog) == before


def test_manifest_list_keeps_given_order(catalog):
    table = memory_table(catalog)
    attempt = attempt_on(table)
    manifests = [m for name in "bca" for m in attempt.write_manifests(name, added(name), 0)]
    snapshot, ref = attempt.snapshot_updates("append", manifests, SummaryBuilder())
    listed = raw(table, snapshot.snapshot.manifest_list)
    assert [row["manifest_path"] for row in listed] == [m.manifest_path for m in manifests]
    assert {row["sequence_number"] for row in listed} == {1}
    assert ref == SetSnapshotRef("main", SnapshotRef(snapshot_id=SNAPSHOT_ID, type="branch"))
    assert snapshot.snapshot.snapshot_id == SNAPSHOT_ID


def test_each_attempt_has_a_list_of_its_own(catalog):
    table = memory_table(catalog)
    commit_files = CommitFiles(table.storage, "c")
    for number in (1, 2):
        attempt_on(table, commit_files, number).snapshot_updates("append", [], SummaryBuilder())
    assert [location.rsplit("/", 1)[-1] for location in commit_files.written] == [
        "snap-77-1-c.avro",
        "snap-77-2-c.avro",
    ]


@pytest.mark.parametrize(
    ("codec", "name"),
    [
        ("gzip", b"deflate"),
        ("uncompressed", b"null"),
        (None, b"deflate"),
        ("zstd", b"zstandard"),
        ("SNAPPY", b"snappy"),
    ],
)
def test_manifests_and_lists_are_compressed_as_the_table_wants(catalog, codec, name):
    properties = {} if codec is None else {"write.manifest.compression-codec": codec}
    table = add(memory_table(catalog, **properties), "a")
    for location in (table.metadata.current_snapshot.manifest_list, manifests_of(table)[0].manifest_path):
        assert b"avro.codec" + bytes([2 * len(name)]) + name in table.storage.read(location)
    assert live(table) == {"a": 1}


def test_unsupported_codec_is_refused_and_leaves_no_files(catalog):
    table = memory_table(catalog, **{"write.manifest.compression-codec": "brotli"})
    before = stored(catalog)
    with pytest.raises(UsageError, match=r"'write.manifest.compression-codec' is 'brotli'; set 'gzip', "):
        add(table, "a")
    assert stored(catalog) == before


def test_metadata_goes_where_the_table_wants_it(catalog):
    table = add(memory_table(catalog, **{"write.metadata.path": "memory://lake/elsewhere/"}), "a")
    snapshot = table.metadata.current_snapshot
    for location in (snapshot.manifest_list, raw_list(table)[0]["manifest_path"]):
        assert location.startswith("memory://lake/elsewhere/")


def test_totals_need_a_parent_summary(catalog):
    """Totals continue those of the parent, and are left out where the parent has no summary."""
    table = add(memory_table(catalog), "a", "b")
    assert add(table, "c").metadata.current_snapshot.summary["total-data-files"] == "3"
    silent = msgspec.structs.replace(table.metadata.current_snapshot, summary=None)
    base = msgspec.structs.replace(table, metadata=msgspec.structs.replace(table.metadata, snapshots=(silent,)))
    snapshot, _ = attempt_on(base).snapshot_updates("append", [], SummaryBuilder())
    assert not [key for key in snapshot.snapshot.summary if key.startswith("total-")]


def test_partitions_survive_the_way_into_a_manifest_and_back(catalog):
    table = memory_table(catalog, spec=BY_KIND)
    table = add(table, data_file("a", partition=("x",)), data_file("b", partition=(None,)))
    assert [entry.data_file.partition for entry in entries_of(table)] == [("x",), (None,)]


def test_sequence_numbers_only_grow(catalog):
    table = add(memory_table(catalog), "a")
    catalog.follow(CONFLICTS, after(lambda: add(table, "theirs")))
    second = run(table, AppendFiles(files=files("b"))).table
    policy = RetentionPolicy(older_than_ms=2**62, retain_last=1)
    run(second, ExpireSnapshots(policy=policy, now_ms=START_MS))
    third = add(swap(table, SetProperties({"x": "y"})), "c").metadata
    assert [s.sequence_number for s in third.snapshots] == [3, 4]
    assert third.last_sequence_number == 4


@pytest.mark.parametrize(
    "sign",
    [{"encryption_keys": ({"key-id": "a"},)}, {"properties": {"encryption.key-id": "a"}}, {"key_id": "a"}],
    ids=["keys", "property", "snapshot"],
)
def test_nothing_is_written_to_an_encrypted_table(catalog, sign):
    table = add(memory_table(catalog), "a")
    metadata = table.metadata
    if "key_id" in sign:
        sign = {"snapshots": (msgspec.structs.replace(metadata.snapshots[0], **sign),)}
    encrypted = msgspec.structs.replace(table, metadata=msgspec.structs.replace(metadata, **sign))
    with pytest.raises(UnsupportedError, match="is encrypted, and icekeep writes no encrypted files"):
        attempt_on(encrypted).snapshot_updates("append", [], SummaryBuilder())


PARTITION_FIELD_ID = BY_KIND.fields[0].field_id
OF_TOMORROW = 9143


def stored_as_bytes(schema: Any) -> Any:
    """A partition field of text as one of bytes, which are laid out alike: no text, as an unknown transform may store."""
    field_of(schema, PARTITION_FIELD_ID)["type"] = ["null", "bytes"]
    return schema


def with_another_field(schema: Any) -> Any:
    field_of(schema, 143).update({"field-id": OF_TOMORROW, "name": "of_tomorrow"})
    return schema


def changed_manifest(table: Any, change: Any) -> Any:
    """The table whose one manifest has another schema over the same records."""
    (old,) = manifests_of(table)
    own = staged(table, "own", live_in(table, old))
    data = with_schema(table.storage.read(own.manifest_path), change)
    location = f"{own.manifest_path.removesuffix('.avro')}-odd.avro"
    table.storage.create(location, data)
    new = replace(own, manifest_path=location, manifest_length=len(data), sequence_number=None, added_snapshot_id=None)
    rewrite = RewriteManifests(replaced=(old,), added=(replace(new, first_row_id=None),))
    return commit(table, rewrite, runtime=table.catalog.runtime).table


def of_unknown_transform(table: Any) -> Any:
    spec = replace(BY_KIND, fields=tuple(replace(f, transform=UnknownTransform("zorder[3]")) for f in BY_KIND.fields))
    metadata = replace(table.metadata, partition_specs=(spec,))
    catalog = table.catalog
    catalog._locations[table.identifier] = catalog._write(metadata, 99)
    return catalog.load(table.identifier)


def table_of(version, **properties):
    table = memory_table(spec=BY_KIND, format_version=version, **properties)
    return add(table, *(data_file(name, 3, (f"kind {name}",)) for name in "abc"))


def records(table, manifest):
    data = table.storage.read(manifest.manifest_path)
    return [*read_records(data, read_header(data, ""), "")]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_unknown_transform_values_survive_manifest_rewrite(version):
    """Partition values of an unknown transform stay when other files of the manifest are deleted."""
    table = of_unknown_transform(changed_manifest(table_of(version), stored_as_bytes))
    before = {r["data_file"]["file_path"]: r for m in manifests_of(table) for r in records(table, m)}
    done = run(table, DeleteFiles(paths=frozenset({next(p for p in before if "/b" in p)}))).table
    (manifest,) = manifests_of(done)
    after = records(done, manifest)
    assert [(r["status"], r["data_file"]["partition"]["kind"]) for r in after] == [
        (Status.EXISTING, b"kind a"), (Status.DELETED, b"kind b"), (Status.EXISTING, b"kind c"),
    ]  # fmt: skip
    for record in after:
        old = before[record["data_file"]["file_path"]]
        if record["status"] == Status.EXISTING:
            assert record["snapshot_id"] == old["snapshot_id"]
        row_id = {"first_row_id": record["data_file"].get("first_row_id")} if version > 2 else {}
        assert record["data_file"] == {**old["data_file"], **row_id}
    assert live(done).keys() == {"a", "c"}
    assert (manifest.existing_files_count, manifest.deleted_files_count, manifest.added_files_count) == (2, 1, 0)
    again = run(done, DeleteFiles(paths=frozenset(p for p in before if "/a" in p))).table
    assert live(again).keys() == {"c"}


@pytest.mark.parametrize("version", [2, 3])
def test_unknown_fields_survive_manifest_rewrite(version):
    table = changed_manifest(table_of(version), with_another_field)
    paths = [r["data_file"]["file_path"] for m in manifests_of(table) for r in records(table, m)]
    done = run(table, DeleteFiles(paths=frozenset(p for p in paths if "/b" in p))).table
    (manifest,) = manifests_of(done)
    header = read_manifest_header(done.storage.read(manifest.manifest_path), manifest.manifest_path)
    assert header.unknown_field_ids == {OF_TOMORROW}
    assert all("of_tomorrow" in record["data_file"] for record in records(done, manifest))
    assert live(done).keys() == {"a", "c"}


@pytest.mark.parametrize("odd", [stored_as_bytes, with_another_field])
def test_an_append_that_merges_leaves_such_manifests_as_they_are(odd):
    table = changed_manifest(table_of(2, commit__manifest__min_count_to_merge="2"), odd)
    (manifest,) = manifests_of(table)
    if odd is stored_as_bytes:
        # Files are appended to another spec than that of the odd manifest.
        table = of_unknown_transform(table)
        with pytest.raises(
            UnsupportedError, match=r"partition spec 0 has a transform that is not known \(zorder\[3\]\)"
        ):
            run(table, AppendFiles(files=(data_file("d", 3, ("x",)),)))
        return
    table = add(table, data_file("d", 3, ("x",)))
    table = add(table, data_file("e", 3, ("x",)))
    assert manifest.manifest_path in [m.manifest_path for m in manifests_of(table)]
    assert len(manifests_of(table)) == 2
    assert live(table).keys() == set("abcde")


def test_an_unknown_manifest_of_version_1_is_not_carried_on():
    table = table_of(2)
    (manifest,) = manifests_of(table)
    data = with_metadata(table.storage.read(manifest.manifest_path), {"format-version": b"1"})
    row = replace(manifest, manifest_length=len(data))
    with pytest.raises(UnsupportedError, match="is of version 1 and holds what icekeep does not know"):
        carried_manifest(
            data,
            row,
            table.metadata.partition_type(0),
            lambda entry: entry,
            location="memory://x/new.avro",
            snapshot_id=1,
            format_version=2,
            codec="gzip",
        )


AT = "memory://lake/wh/db/events/metadata"


@pytest.fixture
def table():
    return add(memory_table(), "a")


@pytest.fixture
def snapshot(table):
    return table.metadata.current_snapshot


def written(table, storage, snapshot: Snapshot) -> CommitFiles:
    """The files of a commit that made `snapshot` in its second attempt: of each kind one that it names and one that not."""
    files = CommitFiles(storage, "c")
    manifests = [raw_list(table)[0]["manifest_path"], f"{AT}/lost-m1.avro"]
    files.written += [f"{AT}/lost-list.avro", snapshot.manifest_list, *manifests]
    files.named[f"{AT}/lost-list.avro"] = frozenset(manifests)
    files.named[snapshot.manifest_list] = frozenset(manifests[:1])
    for location in (f"{AT}/lost-list.avro", f"{AT}/lost-m1.avro", f"{AT}/of-somebody-else.avro"):
        table.storage.create(location, b"x")
    return files


def test_all_that_a_commit_wrote_is_removed_and_nothing_else(table, snapshot):
    before = stored(table.catalog)
    remove_all(written(table, table.storage, snapshot))
    gone = {snapshot.manifest_list, raw_list_path(before)}
    assert stored(table.catalog) == (before | {f"{AT}/of-somebody-else.avro"}) - gone


def raw_list_path(locations: set[str]) -> str:
    (path,) = [location for location in locations if location.endswith("-m0.avro")]
    return path


def test_what_the_snapshot_names_stays_and_the_rest_goes(table, snapshot):
    before = stored(table.catalog)
    remove_unused(written(table, table.storage, snapshot), snapshot)
    assert stored(table.catalog) == before | {f"{AT}/of-somebody-else.avro"}


def test_cleanup_without_snapshot_removes_nothing(table, snapshot):
    """Without the snapshot nothing says which files it names, so none is removed."""
    storage = HookedStorage(table.storage)
    remove_unused(written(table, storage, snapshot), None)
    assert storage.fired["delete_many"] == 0


def test_nothing_is_removed_for_another_writers_list(table, snapshot):
    files = written(table, table.storage, snapshot)
    before = stored(table.catalog)
    remove_unused(files, msgspec.structs.replace(snapshot, manifest_list=f"{AT}/of-somebody-else.avro"))
    assert stored(table.catalog) == before


def test_a_commit_that_left_nothing_over_asks_storage_nothing(table, snapshot):
    storage = HookedStorage(table.storage)
    files = CommitFiles(storage, "c")
    manifest = raw_list(table)[0]["manifest_path"]
    files.written += [snapshot.manifest_list, manifest]
    files.named[snapshot.manifest_list] = frozenset({manifest})
    before = stored(table.catalog)
    remove_unused(files, snapshot)
    assert storage.fired == {}
    assert stored(table.catalog) == before


def test_a_file_that_cannot_be_removed_stays_and_changes_nothing(table, snapshot):
    def refuse(operation, location):
        if operation == "delete_many":
            raise UnavailableError("out of reach")

    storage = HookedStorage(table.storage, before=refuse)
    files = written(table, storage, snapshot)
    remove_all(files)
    remove_unused(files, snapshot)
    assert storage.fired["delete_many"] == 2
    assert f"{AT}/lost-list.avro" in stored(table.catalog)


def test_a_commit_that_wrote_nothing_asks_storage_nothing():
    storage = HookedStorage(MemoryStorage())
    remove_all(CommitFiles(storage, "c"))
    assert storage.fired == {}
