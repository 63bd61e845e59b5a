"""What we do not know of a manifest, a transform's values or fields, stays as it is in every change."""

from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.commit.changes.files import AppendFiles, DeleteFiles
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.retry import commit
from icekeep.errors import UnsupportedError
from icekeep.spec.avro import read_header, read_records
from icekeep.spec.manifests.read import read_manifest_header
from icekeep.spec.manifests.structs import Status
from icekeep.spec.manifests.write import carried_manifest
from icekeep.spec.transforms import UnknownTransform
from kit.changes import run
from kit.manifests import field_of, with_metadata, with_schema
from kit.rewritten_manifests import live_in, staged
from kit.tables import BY_KIND, add, data_file, live, manifests_of, memory_table

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
def test_values_of_an_unknown_transform_stay_when_other_files_of_their_manifest_go(version):
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
def test_fields_that_are_not_known_stay_when_files_of_their_manifest_go(version):
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
