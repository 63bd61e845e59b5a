"""Big tables for benchmarks: manifests with any number of entries, of data files that do not exist.

Spark's Avro writer writes the manifests. It knows nothing of Iceberg's key-value metadata, so the header of each file is
replaced by one that has it.
"""

import datetime
import re
import shutil
from pathlib import Path
from urllib.parse import urlparse

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from bench.tables.big_rows import (
    ACCOUNTS,
    ACCOUNTS_A_FILE,
    FIRST_DAY,
    Shape,
    entries,
    file_size,
    numbered_files,
    schema,
)
from bench.tables.kept import IDENTIFIER, NAMESPACE, Kept
from icekeep.catalog.base import Committed, Table
from icekeep.planning.spark.session import build_session, stop_session
from icekeep.spec.avro import avro_schema, read_header, write_header
from icekeep.spec.manifests.structs import FieldSummary, ManifestFile
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder, write_manifest_list
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import manifest_list_location, metadata_directory
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef
from icekeep.spec.types import DATE
from icekeep.spec.updates import AddSnapshot, SetSnapshotRef, requirements_for
from icekeep.spec.values import value_to_bytes
from icekeep.tables.verbs import create_table

AVRO_WRITER = "org.apache.spark.sql.avro.AvroFileFormat"
"""Spark's own class: by its short name, `avro`, pip's PySpark does not find it."""

SPARK = {"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.log.level": "ERROR"}
"""Errors only: the Avro writer warns of each field of each file."""

_PART = re.compile(r"part-(?P<task>\d+)-.+-c(?P<file>\d+)\..*avro")
_FORMAT_VERSION = 2
_SNAPSHOT_ID = 4_242_424_242
_UUID = "0b1900aa-5e1f-4c5a-9d27-6f1d3c2b4a59"
"""In the names of manifests, as other writers name them: what never changes is known by it."""
_HEADER_BYTES = 1 << 20
_COPY_BYTES = 8 << 20


class Filter(msgspec.Struct, frozen=True):
    """A filter as text for icekeep and PyIceberg, for Spark, and for Spark over the table's metadata table `files`."""

    where: str
    sql: str
    files_sql: str


FILTERS = ("none", "partition", "bounds")


def filters(shape: Shape) -> dict[str, Filter]:
    """Nothing; a tenth of the partitions, in the middle of manifests; an account range that 9 % of the files touch."""
    low, high = ACCOUNTS // 2, ACCOUNTS // 2 + 2 * ACCOUNTS_A_FILE
    return {
        "none": Filter("true", "true", "true"),
        "partition": days_filter(shape, max(1, shape.partitions // 10)),
        "bounds": Filter(
            f"account >= {low} and account < {high}",
            f"account >= {low} and account < {high}",
            f"readable_metrics.account.upper_bound >= {low} and readable_metrics.account.lower_bound < {high}",
        ),
    }


def days_filter(shape: Shape, days: int) -> Filter:
    """So many partitions in a row, which begin somewhere in the middle."""
    first = FIRST_DAY + shape.partitions * 43 // 100
    since, until = day_text(first), day_text(first + days)
    return Filter(
        f"at >= '{since}T00:00:00+00:00' and at < '{until}T00:00:00+00:00'",
        f"at >= timestamp '{since} 00:00:00Z' and at < timestamp '{until} 00:00:00Z'",
        f"partition.at_day >= date '{since}' and partition.at_day < date '{until}'",
    )


def day_text(days: int) -> str:
    """Days since the epoch as ISO 8601."""
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=days)).isoformat()


def make(table: Kept, spark: SparkSession | None = None) -> dict[str, int]:
    """Make a table, in a session of its own if none is given."""
    if spark is None:
        spark = build_session("big-tables", SPARK)
        try:
            return make(table, spark)
        finally:
            stop_session(spark)
    catalog, shape = table.catalog, table.shape
    catalog.create_namespace((NAMESPACE,), exists_ok=True)
    created = create_table(catalog, IDENTIFIER, schema(shape.columns), partition_by=[("at", "day")])
    files = numbered_files(_session(spark), shape)
    staging = table.directory / "staging"
    rows = entries(files, created.metadata.location, shape)
    write_entries(rows, created.metadata, staging, file_rows=shape.manifest_entries)
    directory = metadata_directory(created.metadata)
    written = [
        spliced(path, created.metadata, f"{directory}/{_UUID}-m{number:05}.avro")
        for number, path in enumerate(parts(staging))
    ]
    counted = _counted(files)
    if not len(written) == len(counted) == shape.manifests:
        raise RuntimeError(f"Spark wrote {len(written)} manifests instead of {shape.manifests}")
    manifests = [_manifest(path, row) for path, row in zip(written, counted, strict=True)]
    _commit(created, manifests, sum(row["bytes"] for row in counted))
    shutil.rmtree(staging)
    return {"entries": shape.entries}


def _session(spark: SparkSession) -> SparkSession:
    """A session on the same Spark, to make rows in."""
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")  # a number may be taken as its bytes
    # The expressions of an entry are too much for one method, which the JVM would not compile: six times as slow.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    return session


def write_entries(rows: DataFrame, metadata: TableMetadata, directory: Path, *, file_rows: int = 0) -> None:
    """Let Spark write rows of `entries` as Avro files, of at most this many rows each if it is not 0."""
    encoder = EntryEncoder(metadata.partition_type(metadata.default_spec_id), _FORMAT_VERSION)
    avro = msgspec.json.encode(avro_schema(encoder.struct, "manifest_entry")).decode()
    options = {"avroSchema": avro, "compression": "deflate", "maxRecordsPerFile": str(file_rows)}
    rows.write.format(AVRO_WRITER).options(**options).save(directory.as_uri())


def parts(directory: Path) -> list[Path]:
    """What Spark wrote, in the order of the rows: by the numbers of the task and of its file, which the names tell."""

    def order(path: Path) -> tuple[int, int]:
        numbers = _PART.fullmatch(path.name)
        assert numbers is not None, path
        return int(numbers["task"]), int(numbers["file"])

    return sorted(directory.glob("part-*.avro"), key=order)


def spliced(part: Path, metadata: TableMetadata, location: str) -> str:
    """Copy one of Spark's files to a location with the header of a manifest, and remove it; returns the location."""
    encoder = EntryEncoder(metadata.partition_type(metadata.default_spec_id), _FORMAT_VERSION)
    empty, _ = ManifestBuilder(
        location, encoder, metadata.spec, metadata.schema, format_version=_FORMAT_VERSION
    ).finish(None)
    with part.open("rb") as blocks, Path(urlparse(location).path).open("wb") as manifest:
        theirs = read_header(blocks.read(_HEADER_BYTES), str(part))
        manifest.write(write_header(read_header(empty, location).metadata, theirs.sync))
        blocks.seek(theirs.length_bytes)
        shutil.copyfileobj(blocks, manifest, _COPY_BYTES)
    part.unlink()
    return location


def _counted(files: DataFrame) -> list[Row]:
    """What a manifest list says of each manifest, in order."""
    return (
        files.groupBy("manifest_number")
        .agg(
            F.count("*").alias("files"),
            F.sum("record_count").alias("records"),
            F.sum(file_size()).alias("bytes"),
            F.min("partition_number").alias("first"),
            F.max("partition_number").alias("last"),
        )
        .orderBy("manifest_number")
        .collect()
    )


def _manifest(location: str, row: Row) -> ManifestFile:
    lower, upper = (value_to_bytes(DATE, row[name] + FIRST_DAY) for name in ("first", "last"))
    return ManifestFile(
        manifest_path=location,
        manifest_length=Path(urlparse(location).path).stat().st_size,
        partition_spec_id=0,
        added_snapshot_id=_SNAPSHOT_ID,
        added_files_count=row["files"],
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=row["records"],
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=(FieldSummary(contains_null=False, lower_bound=lower, upper_bound=upper),),
    )


def _commit(table: Table, manifests: list[ManifestFile], size_bytes: int) -> None:
    """Append all manifests in one snapshot."""
    metadata = table.metadata
    counts = {
        "data-files": sum(m.added_files_count or 0 for m in manifests),
        "records": sum(m.added_rows_count or 0 for m in manifests),
        "files-size": size_bytes,
    }
    snapshot = Snapshot(
        snapshot_id=_SNAPSHOT_ID,
        sequence_number=metadata.next_sequence_number,
        timestamp_ms=metadata.last_updated_ms,
        manifest_list=manifest_list_location(metadata, _SNAPSHOT_ID, 1, "big"),
        summary={"operation": "append"}
        | {f"{prefix}-{name}": str(count) for prefix in ("added", "total") for name, count in counts.items()},
        schema_id=metadata.current_schema_id,
    )
    assert snapshot.manifest_list is not None
    with table.storage.write(snapshot.manifest_list) as stream:
        stream.write(write_manifest_list(manifests, snapshot, format_version=_FORMAT_VERSION))
    updates = AddSnapshot(snapshot), SetSnapshotRef(MAIN, SnapshotRef(snapshot_id=_SNAPSHOT_ID, type="branch"))
    outcome = table.catalog.swap(table, requirements_for(metadata, updates), updates)
    if not isinstance(outcome, Committed):
        raise RuntimeError(f"the table was not committed: {outcome}")
