"""The live entries of rewritten tables, with all fields: the same by our reader, by PyIceberg and by Iceberg Java 1.12.0.

Java also judges what follows from them: rows, plans, and the rows of the manifest list. No table here is so large that
Spark is needed.
"""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.spec.avro import read_header
from icekeep.spec.manifests.structs import FileContent
from icekeep.tables.verbs import create_table
from kit.cases import thinned
from kit.foreign_tables import ByJava
from kit.java import IcebergJava
from kit.java_stories import EVENTS, STORIES, event, partitioned_by
from kit.java_stories import events as story_rows
from kit.lake import Lake, events
from kit.naive_scan import live_entries
from kit.rewritten_manifests import Case, check_one_manifest_a_group, check_rewritten, java_manifests
from kit.row_histories import History
from kit.runtime import no_spark

# By version of the format, the numbers that they follow from.
HISTORIES = {1: (1,), 2: (2, 5), 3: (3,)}
FILTERS = ("id IN (3, 17, 31)", "kind = 'k1' OR kind IS NULL", "score > 3")


@pytest.fixture(scope="module")
def shared_lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("rewritten"))


@pytest.fixture
def case(shared_lake: Lake, java: IcebergJava) -> Case:
    java.open_catalog("local", shared_lake.properties)
    return Case(shared_lake, java)


def paths(case: Case) -> list[str]:
    """Of the live data files."""
    return [e.data_file.file_path for e in live_entries(case.table) if e.data_file.content is FileContent.DATA]


SPECS: dict[str, tuple[tuple[str, str], ...]] = {
    "unpartitioned": (),
    "identity": (("kind", "identity"), ("score", "identity")),
    "transforms": (("day", "month"), ("id", "bucket[3]"), ("kind", "truncate[1]")),
}


@pytest.mark.parametrize(
    ("spec", "version"),
    thinned(
        [
            ("identity", 3),
            ("unpartitioned", 2),
            ("identity", 1),
            ("transforms", 2),
            ("transforms", 1),
            ("transforms", 3),
        ],
        every=3,
        others=pytest.mark.deep,
    ),
)
def test_tables_of_java_keep_every_entry(case: Case, spec: str, version: int) -> None:
    """With entries of deleted files among the others, and with null, NaN and both zeros in partitions."""
    case.theirs.create(EVENTS, partitioned_by(*SPECS[spec]), version)
    for start in range(0, 50, 10):
        case.theirs.append(story_rows(range(start, start + 10)), files=2)
    case.java.ask("Manifests.deleteFile", table=case.name.split("."), path=min(paths(case)))
    before = case.told(*FILTERS)
    assert any(m["listed"]["deleted_files_count"] for m in before.manifests)
    result = rewrite_manifests(case.table, no_spark, spec_id="all")
    after = case.told(*FILTERS)
    check_rewritten(before, after)
    check_one_manifest_a_group(before, after)
    assert result.rewritten_manifests_count == len(before.manifests)
    assert result.added_manifests_count == len(after.manifests) == 1
    case.theirs.append(story_rows(range(60, 65)))
    assert case.theirs.rows().total() == after.rows.total() + 5


TOLD = (
    "upserts", "three specs",
    "promoted and renamed", "dropped and added again", "every type", "vectors by partition",
    "vectors over position deletes", "compacted",
)  # fmt: skip


@pytest.mark.parametrize("name", thinned(TOLD, 4, pytest.mark.deep))
def test_tables_whose_rows_java_deleted_keep_every_entry(case: Case, name: str) -> None:
    """Delete manifests too, all specs in one commit: every kind of delete file and vector, evolved specs and schemas."""
    story = STORIES[name]
    story.tell(case.theirs)
    rows = case.theirs.rows_of_spark if story.reader == "spark" else None
    if story.renaming:
        case.theirs.alter(f"RENAME COLUMN {story.renaming} TO renamed")
    wheres = ("id < 7", "id > 15")
    before = case.told(*wheres, rows=rows)
    snapshots = len(case.table.metadata.snapshots)
    assert any(manifest["content"] == 1 for manifest in before.manifests)
    rewrite_manifests(case.table, no_spark, spec_id="all")
    after = case.told(*wheres, rows=rows)
    check_rewritten(before, after)
    check_one_manifest_a_group(before, after)
    assert len(case.table.metadata.snapshots) == snapshots + 1


@pytest.mark.parametrize("version", thinned(HISTORIES, 2, pytest.mark.deep))
def test_generated_histories_keep_every_entry(case: Case, version: int, tried: Any) -> None:
    """Appends, deletes, changed columns and specs, as `kit.row_histories` has them."""
    for seed in HISTORIES[version]:
        by = ByJava(case.lake, case.java)
        history = History.of(seed, by, (version,))
        case.identifier, case.name = ("db", by.name), by.java_table.name
        before = case.told("id < 7", rows=by.rows)
        assert before.rows == history.expected()
        rewrite_manifests(history.table, no_spark, spec_id="all")
        after = case.told("id < 7", rows=by.rows)
        check_rewritten(before, after)
        check_one_manifest_a_group(before, after)
        tried("generated histories whose manifests were rewritten")
        tried("manifests that were rewritten in them", len(before.manifests))


def test_manifests_that_java_merged_keep_every_entry(case: Case) -> None:
    case.theirs.create(EVENTS, partitioned_by(("kind", "identity")), commit__manifest__min_count_to_merge="3")
    for start in range(0, 20, 5):
        case.theirs.append(story_rows(range(start, start + 5)))
    case.theirs.alter("SET TBLPROPERTIES ('commit.manifest-merge.enabled' = 'false')")
    for start in range(20, 35, 5):
        case.theirs.append(story_rows(range(start, start + 5)))
    before = case.told(*FILTERS)
    assert len(before.manifests) > 3
    assert max(len(m["entries"]) for m in before.manifests) > 3
    rewrite_manifests(case.table, no_spark)
    after = case.told(*FILTERS)
    check_rewritten(before, after)
    check_one_manifest_a_group(before, after)


def test_what_was_there_before_version_3_gets_row_ids_once_and_keeps_them(case: Case) -> None:
    """Iceberg's `testRewriteManifestsAfterV2ToV3Upgrade` and `testRewriteManifestsAfterUpgradeToV3`."""
    case.theirs.create(EVENTS, partitioned_by(("kind", "identity")))
    for start in (0, 10):
        case.theirs.append(story_rows(range(start, start + 10)))
    case.theirs.alter("SET TBLPROPERTIES ('format-version' = '3')")
    before = case.told()
    assert '"first_row_id": null' in next(iter(before.ours))
    rewrite_manifests(case.table, no_spark)
    after = case.told()
    check_rewritten(before, after, with_row_ids=False)
    case.theirs.append(story_rows(range(20, 30)))
    case.theirs.append(story_rows(range(30, 40)))
    before = case.told()
    lineage = row_lineage(case)
    rewrite_manifests(case.table, no_spark)
    check_rewritten(before, case.told())
    assert row_lineage(case) == lineage
    assert len({row_id for row_id, _ in lineage.values()}) == len(lineage) == 40
    assert None not in {row_id for row_id, _ in lineage.values()}


def row_lineage(case: Case) -> dict[int, tuple[Any, Any]]:
    """By id, the row id and the sequence number of its last change, as Java's Spark reads them."""
    rows = case.theirs.sql("SELECT id, _row_id, _last_updated_sequence_number FROM {t}")
    return {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in rows}


@pytest.mark.parametrize("version", [1, 2])
def test_tables_of_pyiceberg_keep_every_entry_and_pyiceberg_reads_their_rows(case: Case, version: int) -> None:
    """With entries that PyIceberg's copy-on-write delete left as deleted."""
    table = create_table(
        case.lake.catalog,
        case.identifier,
        events(0).schema,
        partition_by=[("kind", "identity")],
        format_version=version,
    )
    foreign = case.foreign
    for number in range(4):
        foreign.append(events(number, month=1 + number))
    foreign.delete("id = 3000001")
    before, rows = case.told("id < 1000000", "kind = 'kind-1'"), foreign.scan().to_arrow()
    result = rewrite_manifests(case.table, no_spark)
    after = case.told("id < 1000000", "kind = 'kind-1'")
    check_rewritten(before, after)
    assert (result.rewritten_manifests_count, len(after.manifests)) == (len(before.manifests), 1)
    assert case.foreign.scan().to_arrow().sort_by("id").equals(rows.sort_by("id"))
    case.foreign.append(events(9))
    assert case.java.rows(case.name).total() == rows.num_rows + 20
    assert table.metadata.format_version == version


def test_entries_of_imported_files_are_kept(case: Case, tmp_path: Path) -> None:
    """Iceberg's `testRewriteImportedManifests`; here PyIceberg adds Parquet files that no Iceberg writer made."""
    create_table(case.lake.catalog, case.identifier, events(0).schema, partition_by=[("kind", "identity")])
    foreign = case.foreign
    for number in range(3):
        rows = events(number).filter(pc.equal(events(number)["kind"], f"kind-{number}"))
        pq.write_table(rows, tmp_path / f"{number}.parquet")
        foreign.add_files([(tmp_path / f"{number}.parquet").as_uri()])
    foreign.append(events(9))
    before = case.told("kind = 'kind-1'")
    assert len(before.manifests) == 4
    rewrite_manifests(case.table, no_spark)
    after = case.told("kind = 'kind-1'")
    check_rewritten(before, after)
    assert len(after.manifests) == 1


CODECS = {"uncompressed": "null", "zstd": "zstandard", "snappy": "snappy"}


@pytest.mark.parametrize("codec", CODECS)
def test_the_codec_of_the_table_is_read_and_written(case: Case, codec: str) -> None:
    """`write.manifest.compression-codec`; what is there was written with it by Java, and the first of it with gzip."""
    case.theirs.create(EVENTS, partitioned_by(("kind", "identity")))
    case.theirs.append(story_rows(range(10)))
    case.theirs.alter(f"SET TBLPROPERTIES ('write.manifest.compression-codec' = '{codec}')")
    for start in (10, 20):
        case.theirs.append(story_rows(range(start, start + 10)))
    # PyIceberg needs a package of its own for Snappy, which is not installed.
    before = case.told(*FILTERS, foreign=codec != "snappy")
    assert {codec_of(manifest) for manifest in before.manifests} == {"deflate", CODECS[codec]}
    rewrite_manifests(case.table, no_spark)
    after = case.told(*FILTERS, foreign=codec != "snappy")
    check_rewritten(before, after)
    assert {codec_of(manifest) for manifest in after.manifests} == {CODECS[codec]}


def codec_of(manifest: dict[str, Any]) -> str:
    """What the blocks of a manifest are packed by, in Avro's words."""
    head = Path(urlparse(manifest["manifest_path"]).path).read_bytes()
    return read_header(head, "").metadata["avro.codec"].decode()


@pytest.mark.parametrize("commits", [1, 3])
def test_what_is_larger_than_the_target_is_split(case: Case, commits: int) -> None:
    """Iceberg's `testRewriteLargeManifestsPartitionedTable`; each new row of the list is what Java's writer makes of it."""
    case.theirs.create(EVENTS, partitioned_by(("id", "identity")), write__manifest__compression_codec="uncompressed")
    for commit in range(commits):
        case.theirs.append(map(event, range(commit, 120, commits)))
    case.theirs.alter("SET TBLPROPERTIES ('commit.manifest.target-size-bytes' = '7000')")
    before = case.told("id = 77")
    rewrite_manifests(case.table, no_spark)
    after = case.told("id = 77")
    check_rewritten(before, after)
    assert len(after.manifests) > commits
    ranges = sorted(
        [int.from_bytes(bytes.fromhex(bound), "little") for bound in m["listed"]["partitions"][0][2:]]
        for m in after.manifests
    )
    assert all(ends < starts for (_, ends), (starts, _) in pairwise(ranges))


def test_a_branch_s_manifests_are_rewritten_and_java_reads_the_branch(case: Case) -> None:
    STORIES["by sql in a branch"].tell(case.theirs)
    main = case.told("id < 7")
    query = f"SELECT id, kind, day FROM {case.name} VERSION AS OF 'audit' ORDER BY id"
    rows = case.java.sql(query)
    rewrite_manifests(case.table, no_spark, branch="audit")
    assert case.told("id < 7") == main
    assert case.java.sql(query) == rows
    head = case.table.metadata.refs["audit"].snapshot_id
    assert case.table.metadata.snapshots_by_id[head].operation == "replace"
    assert Counter((m["partition_spec_id"], m["content"]) for m in java_manifests(case.java, case.name, head)) == {
        (0, 0): 1,
        (0, 1): 1,
    }


def test_dangling_delete_files_are_left_out_and_every_row_stays(case: Case) -> None:
    """Of those that Java's compaction left behind; without the option they stay."""
    STORIES["compacted"].tell(case.theirs)
    before = case.told("id < 7")
    result = rewrite_manifests(case.table, no_spark, options={"remove-dangling-deletes": "true"})
    after = case.told("id < 7")
    assert result.removed_delete_files_count > 0
    assert before.ours.total() - after.ours.total() == result.removed_delete_files_count
    assert not after.ours - before.ours
    assert not after.java - before.java
    assert (after.rows, after.planned) == (before.rows, before.planned)
    applied = {path for file in case.java.plan_files(case.name) for path in file["delete_paths"]}
    assert applied <= {json.loads(entry)["file_path"] for entry in after.ours}


def test_partition_statistics_of_java_go_on(case: Case) -> None:
    """Iceberg's `testPartitionStatsIncrementalCompute`: they are computed from those of before the rewriting."""
    case.theirs.create(EVENTS, partitioned_by(("kind", "identity")))
    for start in (0, 10, 20):
        case.theirs.append(story_rows(range(start, start + 10)))
    before = partition_statistics(case)
    assert len(before) == 4
    rewrite_manifests(case.table, no_spark)
    assert partition_statistics(case) == before


def partition_statistics(case: Case) -> list[Any]:
    """What Java computes for the current snapshot: by partition, records and files."""
    catalog, _, name = case.name.partition(".")
    case.java.call(catalog, "compute_partition_stats", table=name)
    metadata = case.table.metadata
    [path] = [s.statistics_path for s in metadata.partition_statistics if s.snapshot_id == metadata.current_snapshot_id]
    columns = pq.read_table(urlparse(path).path).select(["partition", "data_record_count", "data_file_count"])
    return sorted(map(repr, columns.to_pylist()))


def test_java_goes_on_where_we_stopped(case: Case) -> None:
    """It merges, deletes whole files from, rewrites again and expires what we have rewritten."""
    case.theirs.create(EVENTS, partitioned_by(("kind", "identity")), commit__manifest__min_count_to_merge="2")
    for start in (0, 10, 20):
        case.theirs.append(story_rows(range(start, start + 10)))
    rewrite_manifests(case.table, no_spark)
    case.theirs.sql("DELETE FROM {t} WHERE kind = 'k1'")
    case.theirs.append(story_rows(range(30, 40)))
    catalog, _, name = case.name.partition(".")
    case.java.call(catalog, "rewrite_manifests", table=name)
    before = case.told(*FILTERS)
    rewrite_manifests(case.table, no_spark)
    check_rewritten(before, case.told(*FILTERS))
    expected = [n for n in range(30) if event(n)["kind"] != "k1"] + list(range(30, 40))
    assert sorted(row["id"] for row in case.theirs.sql("SELECT id FROM {t}")) == expected
