from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, OptionError, SafetyError, UnavailableError, UsageError
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.delete.reachable import FileKind
from icekeep.maintenance.expire import job as expiration
from icekeep.maintenance.expire.job import ExpireSnapshotsResult, plan_expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.restore.job import restore
from icekeep.operations.commands.applying import apply_plan, write_plan
from icekeep.runtime import SYSTEM
from kit.lake import EVENTS, Lake, events
from kit.runtime import no_spark


def compacted(lake: Lake) -> Table:
    compact(lake.filled(), no_spark)
    rewrite_manifests(lake.load(), no_spark)
    return lake.load()


def expire_snapshots(table: Table, **arguments: Any) -> ExpireSnapshotsResult:
    """The job, which deletes at once."""
    return expiration.expire_snapshots(table, no_spark, trash=0, **arguments)


def now_ms() -> int:
    return SYSTEM.now_ms() + 1


def referenced_paths(lake: Lake) -> set[Path]:
    """Everything that PyIceberg finds through every snapshot of the table."""
    table = lake.foreign()
    paths = set()
    for snapshot in table.snapshots():
        paths.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            paths.add(manifest.manifest_path)
            paths.update(e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io, discard_deleted=True))
    return {Path(urlparse(path).path) for path in paths}


def test_only_files_of_expired_snapshots_are_deleted(any_lake: Lake) -> None:
    table = compacted(any_lake)
    rows = any_lake.rows()
    result = expire_snapshots(table, older_than=now_ms(), retain_last=1)
    assert (result.status, result.expired_snapshots_count, result.deleted_data_files_count) == ("done", 7, 18)
    assert (result.deleted_manifest_files_count, result.deleted_manifest_lists_count) == (12, 7)
    assert any_lake.rows() == rows
    left = {p for p in any_lake.files_on_disk() if p.suffix in (".parquet", ".avro")}
    assert left == referenced_paths(any_lake)
    assert not [p for p in any_lake.files_on_disk() if ".icekeep" in p.parts]


def test_a_tag_and_a_branch_keep_their_files(lake: Lake) -> None:
    table = lake.filled()
    third = table.metadata.snapshots[2].snapshot_id
    lake.foreign().manage_snapshots().create_tag(third, "audit").create_branch(
        table.metadata.snapshots[3].snapshot_id, "staging"
    ).commit()
    compact(lake.load(), no_spark)
    tagged = lake.foreign().scan(snapshot_id=third).to_arrow().num_rows
    expire_snapshots(lake.load(), older_than=now_ms(), retain_last=1)
    assert set(lake.load().metadata.refs) == {"main", "audit", "staging"}
    assert lake.foreign().scan(snapshot_id=third).to_arrow().num_rows == tagged == 180
    assert lake.foreign().scan().use_ref("staging").to_arrow().num_rows == 240


def test_a_data_file_added_again_under_the_same_path_stays(lake: Lake) -> None:
    """apache/iceberg #2131, #8255: removed, added again, and then deleted from disk."""
    from icekeep.commit.changes.files import AppendFiles
    from icekeep.commit.changes.rewrites import RewriteFiles
    from icekeep.commit.manifests import ManifestReader

    table = lake.filled(commits=1, files=2)
    assert table.metadata.current_snapshot is not None
    reader = ManifestReader(table.storage)
    [manifest] = reader.manifests(table.metadata.current_snapshot)
    entries = tuple(reader.entries(manifest, table.metadata))
    table = commit(table, RewriteFiles(removed=entries, added=(), schema_id=0)).table
    table = commit(table, AppendFiles(files=tuple(e.data_file for e in entries))).table
    rows = lake.rows()
    result = expire_snapshots(table, older_than=now_ms(), retain_last=1)
    assert (result.expired_snapshots_count, result.deleted_data_files_count) == (2, 0)
    assert lake.rows() == rows


def test_gc_disabled_is_refused_before_anything_is_changed(lake: Lake) -> None:
    table = compacted(lake)
    table = commit(table, ChangeProperties(updates={"gc.enabled": "false"})).table
    files = lake.files_on_disk()
    for job in (expiration.expire_snapshots, plan_expire_snapshots):
        with pytest.raises(SafetyError, match=r"gc\.enabled=false"):
            job(table, no_spark, older_than=now_ms())
    assert lake.files_on_disk() == files
    assert lake.load().metadata_location == table.metadata_location


def test_checksums_of_hadoop_go_and_come_back(lake: Lake, tmp_path: Path) -> None:
    """By one that stays Hadoop would refuse another file of the name."""
    table = compacted(lake)
    files = [path for path in lake.files_on_disk() if path.suffix in (".parquet", ".avro")]
    for path in files:
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0 and sums")
    # Of such a name, and none: whatever it is, somebody may need it.
    odd = files[0].with_name(f".{files[0].name}.crc")
    odd.write_bytes(b"PAR1")
    plan = plan_expire_snapshots(table, no_spark, older_than=now_ms(), retain_last=1, trash=3)
    checksums_count = next(kind.files_count for kind in plan.files_by_kind if kind.kind is FileKind.CHECKSUM)
    assert plan.deleted_files_count - 2 * checksums_count in (0, 1)
    written = write_plan(
        table, "expire_snapshots", str(tmp_path / "plan"), no_spark, older_than=now_ms(), retain_last=1
    )
    assert written.totals.files_count == plan.deleted_files_count

    before = lake.files_on_disk()
    done = apply_plan(lake.catalog, str(tmp_path / "plan"), no_spark).result
    assert (done.deleted_files_count, done.deleted_bytes_count) == (plan.deleted_files_count, plan.deleted_bytes_count)
    left = {path for path in lake.files_on_disk() if ".icekeep" not in path.parts}
    here = {path.with_name(f".{path.name}.crc") for path in left if path.suffix in (".parquet", ".avro")}
    assert {path for path in left if path.suffix == ".crc"} == here | {odd}

    restore(lake.load())
    assert {path for path in before if path.suffix == ".crc"} <= {*lake.files_on_disk()}


def test_default_age_of_five_days_keeps_a_young_table(lake: Lake) -> None:
    table = compacted(lake)
    assert expire_snapshots(table).expired_snapshots_count == 0
    assert lake.load().metadata_location == table.metadata_location


def test_snapshot_id_expires_but_a_branch_head_is_refused(lake: Lake) -> None:
    table = lake.filled(commits=3)
    first, _, head = (s.snapshot_id for s in table.metadata.snapshots)
    with pytest.raises(UsageError, match="head of 'main'"):
        expire_snapshots(table, snapshot_ids=[head])
    with pytest.raises(NotFoundError):
        expire_snapshots(table, snapshot_ids=[1])
    with pytest.raises(OptionError, match="retain_last"):
        expire_snapshots(table, retain_last=0)
    assert expire_snapshots(table, snapshot_ids=[first]).expired_snapshots_count == 1
    assert first not in lake.load().metadata.snapshots_by_id


def test_unused_schemas_and_specs_go_when_asked(lake: Lake) -> None:
    lake.filled(commits=2)
    foreign = lake.foreign_catalog().load_table(EVENTS)
    with foreign.update_schema() as schema:
        schema.add_column("note", foreign.schema().find_type("kind"))
    foreign.append(events(50).append_column("note", events(50)["kind"]))
    table = lake.load()
    result = expire_snapshots(table, older_than=now_ms(), retain_last=1, clean_expired_metadata=True)
    assert result.expired_snapshots_count == 2
    assert [s.schema_id for s in lake.load().metadata.schemas] == [1]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UnavailableError("the catalog is out of reach; nothing was changed"), "the catalog is out of reach"),
        (RuntimeError("the JVM is gone"), "RuntimeError: the JVM is gone"),
    ],
    ids=["ours", "another's"],
)
def test_a_failure_after_the_commit_says_what_changed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    table = compacted(lake)
    before = lake.files_on_disk()
    swap, load = table.catalog.swap, table.catalog.load
    landed: list[object] = []

    def swap_and_vanish(*arguments: Any) -> Any:
        landed.append(swap(*arguments))
        return landed[-1]

    def load_until_then(identifier: Any) -> Any:
        if landed:
            raise error
        return load(identifier)

    monkeypatch.setattr(table.catalog, "swap", swap_and_vanish)
    monkeypatch.setattr(table.catalog, "load", load_until_then)
    result = expire_snapshots(table, older_than=now_ms(), retain_last=1)
    assert (result.status, result.expired_snapshots_count > 0) == ("partial", True)
    assert f"the snapshots are expired, and not all of their files are deleted: {said}" in result.left_reason
    assert len(landed) == 1
    assert before <= lake.files_on_disk()
