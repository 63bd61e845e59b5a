"""The live entries of rewritten tables, with all fields: the same by our reader, by PyIceberg and by Iceberg Java 1.12.0.

Java also judges what follows from them: rows, plans, and the rows of the manifest list. No table here is so large that
Spark is needed.
"""

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from uuid import UUID as UUIDValue

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.spec.avro import read_header
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.partitioning import build_spec
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    decimal,
)
from icekeep.spec.values import decimal_from_unscaled
from icekeep.tables.verbs import append, create_table
from kit.cases import thinned
from kit.columns import column, schema_of, table_of
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


def test_rows_before_version_3_get_lasting_row_ids_once(case: Case) -> None:
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
def test_tables_of_pyiceberg_keep_every_entry(case: Case, version: int) -> None:
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


def test_branch_manifests_are_rewritten_and_java_reads_it(case: Case) -> None:
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


ODD_COLUMNS = schema_of(
    column(1, "id", LONG, required=True),
    column(2, "single", FLOAT),
    column(3, "double", DOUBLE),
    column(4, "small", decimal(9, 2)),
    column(5, "large", decimal(38, 10)),
    column(6, "uuid", UUID),
    column(7, "text", STRING),
    column(8, "bytes", BINARY),
    column(9, "date", DATE),
    column(10, "time", TIME),
    column(11, "local", TIMESTAMP),
    column(12, "moment", TIMESTAMPTZ),
    column(13, "flag", BOOLEAN),
)
ODD_SPECS: dict[str, tuple[tuple[str, str], ...]] = {
    "floats": (("single", "identity"), ("double", "identity")),
    "numbers": (("small", "truncate[50]"), ("large", "identity"), ("flag", "identity")),
    "bytes": (("uuid", "identity"), ("bytes", "identity"), ("bytes", "truncate[2]"), ("uuid", "bucket[2]")),
    "text": (("text", "identity"), ("text", "truncate[2]"), ("text", "bucket[3]")),
    "times": (("date", "identity"), ("local", "identity"), ("moment", "month"), ("time", "identity")),
    "years": (("date", "year"), ("local", "hour"), ("moment", "year"), ("date", "void")),
}
_FLOATS = (math.nan, -0.0, 0.0, math.inf, -math.inf, 0.5, None, 1e-40)
_TEXTS = ("", "ä", "a\U0001f600b", "zz/=%", "\U0010ffff\U0010ffff\U0010ffff", None, "a b", "null")


def odd(number: int) -> dict[str, Any]:
    """A row of the values at the edges of each type; every eighth is null."""
    sign = -1 if number % 2 else 1
    row = {
        "single": _FLOATS[number % 8] if _FLOATS[number % 8] != 1e-40 else 2.0**-140,
        "double": _FLOATS[(number + 3) % 8],
        "small": decimal_from_unscaled(sign * (10**9 - 99 - number), 2),
        "large": decimal_from_unscaled(sign * (10**37 + number), 10),
        "uuid": UUIDValue(int=(2**128 - 1 - number) if number % 2 else number),
        "text": _TEXTS[number % 8],
        "bytes": (b"", b"\xff\xff\xff", b"\x00", bytes(range(20)))[number % 4],
        "date": (0, -1, -365, 18_000, -719_162)[number % 5],
        "time": (0, 86_399_999_999, 1)[number % 3],
        "local": (0, -1, -3_600_000_001, 10**15)[number % 4],
        "moment": (0, -1, -(10**15), 4 * 10**15)[number % 4],
        "flag": number % 2 == 0,
    }
    return {"id": number, **(dict.fromkeys(row) if number % 8 == 7 else row)}


@pytest.mark.deep
@pytest.mark.parametrize("writer", ["java", "ours"])
@pytest.mark.parametrize("spec", ODD_SPECS)
def test_odd_partition_values_keep_entries_and_summaries(case: Case, spec: str, writer: str) -> None:
    """Null, NaN, both zeros, infinities, decimals, uuids, binaries, cut strings, times before 1970; in versions by turns.

    Iceberg's `testRewriteLargeManifestsOnDatePartitionedTable...` and `...OnTimestampPartitionedTable...` are among them.
    """
    version = 1 + list(ODD_SPECS).index(spec) % 3
    batches = [[odd(number) for number in range(start, start + 6)] for start in (0, 6, 12)]
    fields = [(name, transform, f"p{n}") for n, (name, transform) in enumerate(ODD_SPECS[spec])]
    if writer == "java":
        case.theirs.create(ODD_COLUMNS, build_spec(ODD_COLUMNS, fields), version)
        for batch in batches:
            case.theirs.append(batch)
    else:
        table = create_table(
            case.lake.catalog, case.identifier, ODD_COLUMNS, partition_by=fields, format_version=version
        )
        for batch in batches:
            table = append(table, table_of(table.metadata.schema, batch))
    wheres = ("single > 0", "double IS NULL", "text = 'ä'", "bytes IS NOT NULL", "local IS NULL", "flag = true")
    before = case.told(*wheres)
    rewrite_manifests(case.table, no_spark)
    after = case.told(*wheres)
    check_rewritten(before, after)
    assert (len(before.manifests), len(after.manifests)) == (3, 1)


@pytest.mark.deep
@pytest.mark.parametrize("version", [1, 2, 3])
def test_fields_of_dropped_columns_keep_their_partition_values(case: Case, version: int) -> None:
    """The partition field is removed, void in version 1, and then its column: old entries still have its values."""
    case.theirs.create(EVENTS, partitioned_by(("kind", "identity"), ("day", "month")), version)
    for start in (0, 10):
        case.theirs.append(story_rows(range(start, start + 10)))
    case.theirs.alter("DROP PARTITION FIELD kind")
    for start in (20, 30):
        case.theirs.append(story_rows(range(start, start + 10)))
    if version > 1:
        case.theirs.alter("DROP COLUMN kind")
    before = case.told("id < 7", "score > 3")
    rewrite_manifests(case.table, no_spark, spec_id="all")
    after = case.told("id < 7", "score > 3")
    check_rewritten(before, after)
    check_one_manifest_a_group(before, after)
    assert len(after.manifests) == 2
