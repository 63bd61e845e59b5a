"""Which delete files reach which data files, as joins: the rule of `spec.applicability` over DataFrames.

Delete files are put together once by their scope: one data file, one partition of a spec, or the whole table. Each data
file then meets its scopes by equality, however many delete files they hold, and takes from each what its sequence number
and path allow. What the rule refuses fails the Spark job with the same error. Few files are matched by `delete_index`;
decision 21 (`docs/design/decisions`) has why the rule is said here again, and the test that holds the two together.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from icekeep.planning.manifests.entry_schema import REACHING_DELETES, SOLE_PATH
from icekeep.planning.spark.lazily import F
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata_columns import DELETE_FILE_PATH
from icekeep.spec.partitioning import PartitionSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BROADCAST_MAX_COUNT = 20_000
"""With no more delete files than this, some 10 MB, each executor gets them all and no data file is shuffled."""

_FIELDS = tuple(field.name for field in REACHING_DELETES.value_type if field != SOLE_PATH)
_WHOLE_TABLE = bytearray(b"t")


def with_deletes(
    data: "DataFrame", deletes: "DataFrame", specs: Mapping[int, PartitionSpec], *, deletes_count: int | None = None
) -> "DataFrame":
    """The data files, each with the delete files that a reader must apply to it; lazy.

    Both are read once. The new column `deletes` has the type `entry_schema.REACHING_DELETES`, is never null, and is ordered by
    sequence number, path and offset. A row with many deletes is wide: narrow it before it is shuffled.

    Args:
        data: live data files; at least `file_path`, `spec_id`, `partition` and `sequence_number` of `entry_schema.ENTRIES`.
        deletes: live delete files; the columns `entry_schema.MATCHED_COLUMNS`.
        specs: the partition specs of the table.
        deletes_count: how many delete files there are at most, as manifest lists tell; `None` where they do not.

    Raises:
        InvalidTableError: (when rows are computed) two deletion vectors reach one data file, a delete file for one data
            file lies in another partition, a vector names no data file, or a partition spec is missing.

    Spec: "Scan Planning", "Delete Formats"; `spec.applicability.reaching_deletes` says the same of values.
    """
    scopes = _scopes(deletes, specs)
    is_small = deletes_count is not None and deletes_count <= BROADCAST_MAX_COUNT
    # Spark's own guess of what tasks yield is far too low; it would bring a million deletion vectors to the driver.
    known = F.broadcast(scopes) if is_small else scopes.hint("merge")
    of_file = known.select(F.col("scope").alias("file_scope"), F.col("members").alias("of_file"))
    of_partition = known.select(F.col("scope").alias("partition_scope"), F.col("members").alias("of_partition"))
    # The file's own come first: there are few of them, and the next join may shuffle what this one adds.
    joined = data.join(of_file, _file_scope(F.col("file_path")) == F.col("file_scope"), "left")
    joined = joined.join(of_partition, _partition_scope() == F.col("partition_scope"), "left")
    if any(spec.is_unpartitioned for spec in specs.values()):
        whole = F.flatten(F.collect_list(F.when(F.col("scope") == F.lit(_WHOLE_TABLE), F.col("members"))))
        joined = joined.crossJoin(F.broadcast(scopes.agg(whole.alias("of_table"))))
    else:
        joined = joined.withColumn("of_table", F.array())
    members = scopes.schema["members"].dataType
    reaching = joined.select(
        *(F.col(name) for name in data.columns),
        F.filter(F.coalesce("of_file", F.array().cast(members)), _is_newer).alias("of_file"),
        F.filter(F.coalesce("of_partition", F.array().cast(members)), _is_newer_and_may_name).alias("of_partition"),
        F.filter(F.col("of_table").cast(members), _is_newer).alias("of_table"),
    )
    return reaching.select(*(F.col(name) for name in data.columns), _in_force().alias("deletes"))


def deletes_in_use(planned: "DataFrame") -> "DataFrame":
    """One row that counts the delete files of a plan's column `deletes`, each once however many data files it reaches.

    For `deletion_vectors`, `position_delete_files` and `equality_delete_files`: columns `<kind>_count`, `<kind>_bytes` (of
    a vector those of its blob) and `<kind>_record_count` (deleted positions, or rows of values to delete by).
    """
    file = F.col("delete")
    used = planned.select(F.explode("deletes").alias("delete")).select(
        file.file_path.alias("file_path"),
        file.content_offset.alias("content_offset"),
        F.when(_is_equality(file), "equality_delete_files")
        .when(_is_vector(file), "deletion_vectors")
        .otherwise("position_delete_files")
        .alias("kind"),
        F.when(_is_vector(file), file.content_size_in_bytes).otherwise(file.file_size_in_bytes).alias("size_in_bytes"),
        file.record_count.alias("record_count"),
    )
    distinct = used.dropDuplicates(["file_path", "content_offset"])
    return distinct.agg(
        *(
            column
            for kind in ("deletion_vectors", "position_delete_files", "equality_delete_files")
            for column in (
                F.count_if(F.col("kind") == kind).alias(f"{kind}_count"),
                _sum_where(kind, "size_in_bytes").alias(f"{kind}_bytes"),
                _sum_where(kind, "record_count").alias(f"{kind}_record_count"),
            )
        )
    )


def _sum_where(kind: str, column: str) -> "Column":
    return F.coalesce(F.sum(F.when(F.col("kind") == kind, F.col(column))), F.lit(0))


def _scopes(deletes: "DataFrame", specs: Mapping[int, PartitionSpec]) -> "DataFrame":
    """A row for each scope that has delete files: its name, and its members in the order of the column `deletes`."""
    delete = F.struct(*_FIELDS, _sole_path().alias(SOLE_PATH.name))
    member = F.struct("sequence_number", "file_path", "content_offset", delete.alias("delete"))
    named = deletes.select(_scope(specs).alias("scope"), member.alias("member"))
    # One list and no filter below this: then all joins share one shuffle, whatever each uses, and `deletes` is read once.
    return named.groupBy("scope").agg(F.sort_array(F.collect_list("member")).alias("members"))


def _sole_path() -> "Column":
    """As `applicability.sole_path`, of position delete files that do not name their data file."""
    lower, upper = (F.col(name).getItem(DELETE_FILE_PATH.field_id) for name in ("lower_bounds", "upper_bounds"))
    is_asked = (F.col("content") == int(FileContent.POSITION_DELETES)) & F.col("referenced_data_file").isNull()
    return F.when(is_asked & (lower == upper), lower)


def _scope(specs: Mapping[int, PartitionSpec]) -> "Column":
    """What a delete file is for, as bytes that start with the kind of scope."""
    path, only, spec_id = F.col("file_path"), F.col("referenced_data_file"), F.col("spec_id")
    is_positions = F.col("content") == int(FileContent.POSITION_DELETES)
    unpartitioned = [number for number, spec in specs.items() if spec.is_unpartitioned]
    no_spec = _error("delete file '", path, "' has partition spec ", spec_id, ", which is not there")
    no_file = _error("the deletion vector in '", path, "' does not say which data file it is for")
    scope = (
        F.when(~spec_id.isin(list(specs)), no_spec)
        .when(is_positions & only.isNotNull(), _file_scope(only))
        .when(is_positions & (F.lower("file_format") == "puffin"), no_file)
        .when(~is_positions & spec_id.isin(unpartitioned), F.lit(_WHOLE_TABLE))
        .otherwise(_partition_scope())
    )
    # Never null, and Spark shall know it: it would filter by it in some of the uses of `_scopes`.
    return F.coalesce(scope, F.lit(bytearray()))


def _file_scope(path: "Column") -> "Column":
    return F.concat(F.lit(bytearray(b"f")), path.cast("binary"))


def _partition_scope() -> "Column":
    number = F.col("spec_id").cast("string").cast("binary")
    return F.concat(F.lit(bytearray(b"p")), number, F.lit(bytearray(b":")), F.col("partition"))


def _is_newer(member: "Column") -> "Column":
    """Whether a delete file is new enough for the data file: equality deletes spare their own commit's."""
    number = F.col("sequence_number")
    return (member.sequence_number > number) | (~_is_equality(member.delete) & (member.sequence_number == number))


def _is_newer_and_may_name(member: "Column") -> "Column":
    # As `applicability.named_range`: only equal bounds say no, which equality deletes have none of.
    sole = member.delete.sole_path
    return _is_newer(member) & (sole.isNull() | F.startswith(F.col("file_path").cast("binary"), sole))


def _in_force() -> "Column":
    """What remains once a deletion vector took the place of position deletes, in order."""
    of_file, of_partition, of_table = F.col("of_file"), F.col("of_partition"), F.col("of_table")
    vectors = F.filter(of_file, lambda member: _is_vector(member.delete))
    elsewhere = F.filter(of_file, _is_elsewhere)
    equality = F.filter(of_partition, lambda member: _is_equality(member.delete))
    in_force = (
        F.when(
            F.size(elsewhere) > 0,
            _error(
                *("delete file '", F.get(elsewhere, F.lit(0)).file_path, "' is for data file '", F.col("file_path")),
                "', which has another partition spec or partition",
            ),
        )
        .when(
            F.size(vectors) > 1,
            _error("data file '", F.col("file_path"), "' has ", F.size(vectors), " deletion vectors; it may have one"),
        )
        .when(F.size(vectors) == 1, F.concat(vectors, equality, of_table))
        .otherwise(F.concat(of_file, of_partition, of_table))
    )
    return F.transform(F.sort_array(in_force), lambda member: member.delete)


def _is_equality(file: "Column") -> "Column":
    return file.content == int(FileContent.EQUALITY_DELETES)


def _is_vector(file: "Column") -> "Column":
    return (file.content == int(FileContent.POSITION_DELETES)) & (F.lower(file.file_format) == "puffin")


def _is_elsewhere(member: "Column") -> "Column":
    file = member.delete
    return (file.spec_id != F.col("spec_id")) | (file.partition != F.col("partition"))


def _error(*parts: "str | Column") -> "Column":
    """Fails the job with an error that `spark.rows.collected` makes again; the parts of its line, texts and columns."""
    columns = (F.lit(part) if isinstance(part, str) else part.cast("string") for part in parts)
    return F.raise_error(F.concat(F.lit("icekeep.errors.InvalidTableError: "), *columns))
