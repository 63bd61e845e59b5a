"""The job `compact` (Iceberg's `rewrite_data_files`): small files into fewer of the target size.

files of a scan -> candidates -> plan of file groups -> rewritten groups -> `RewriteFiles` -> result
"""

from collections.abc import Mapping
from contextlib import closing

from pyspark.sql import Row, SparkSession

from icekeep.catalog.base import Table
from icekeep.errors import NotFoundError, UnsupportedError
from icekeep.events import SILENT, Listener, StepFinished, StepStarted, Warned
from icekeep.formats.write_options import write_options
from icekeep.maintenance.compaction.candidates import candidates
from icekeep.maintenance.compaction.commits import commit_groups
from icekeep.maintenance.compaction.execute import STEP, execute
from icekeep.maintenance.compaction.options import FileSizes, RewriteDataFilesOptions, file_sizes
from icekeep.maintenance.compaction.plan import CandidateFile, RewritePlan, plan_groups
from icekeep.maintenance.compaction.result import RewriteDataFilesResult
from icekeep.maintenance.options import parse_options
from icekeep.planning.commit_reader import SparkManifestReader
from icekeep.planning.scan import open_scan, planned_files, refuse_delete_files, refuse_encrypted_file
from icekeep.planning.tasks import collected
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.encode import PartitionCodec
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import partition_path
from icekeep.spec.snapshots import MAIN
from icekeep.tables.refs import head_to_commit_to

__all__ = ["RewriteDataFilesOptions", "RewriteDataFilesResult", "RewritePlan", "compact", "plan_compaction"]

Options = Mapping[str, str] | RewriteDataFilesOptions


def compact(
    table: Table,
    spark: SparkSession,
    *,
    where: str | Expression = ALWAYS_TRUE,
    options: Options | None = None,
    branch: str = MAIN,
    listener: Listener = SILENT,
    runtime: Runtime = SYSTEM,
) -> RewriteDataFilesResult:
    """Rewrite badly sized data files; the table's rows do not change.

    Args:
        where: chooses files; a chosen file is rewritten whole.
        options: of Iceberg's `rewrite_data_files`, under its names.
        branch: whose files are rewritten, and where that is committed; no other branch moves.

    Raises:
        OptionError, ExpressionError, NotFoundError, UsageError: an argument is wrong, such as a tag in place of a branch;
            nothing was done.
        UnsupportedError: the table is of a kind that cannot be rewritten yet.
        JobFailedError: a file could not be rewritten; the table is as it was, and new files are removed.
        ConflictError: another writer changed a file that was to be replaced.
        OutcomeUnknownError: a commit may or may not have landed; its files are kept.
    """
    chosen = parse_options(RewriteDataFilesOptions, options or {})
    plan = plan_compaction(table, spark, where=where, options=chosen, branch=branch, runtime=runtime)
    if plan.other_specs_files_count:
        listener.on(
            Warned(
                f"{plan.other_specs_files_count} small or large files are of older partition specs and are left as they are"
            )
        )
    if not plan.groups:
        return RewriteDataFilesResult()
    listener.on(StepStarted(STEP, plan.files_to_rewrite_count, "files"))
    concurrency = chosen.max_concurrent_file_group_rewrites
    with closing(execute(plan, table, spark, concurrency=concurrency, listener=listener, runtime=runtime)) as finished:
        reader = SparkManifestReader(spark, table.storage)
        result = commit_groups(finished, table, plan, chosen, reader, listener, runtime)
    listener.on(StepFinished(STEP, f"{result.rewritten_data_files_count} files -> {result.added_data_files_count}"))
    return result


def plan_compaction(
    table: Table,
    spark: SparkSession,
    *,
    where: str | Expression = ALWAYS_TRUE,
    options: Options | None = None,
    branch: str = MAIN,
    runtime: Runtime = SYSTEM,
) -> RewritePlan:
    """Say what `compact` with the same arguments would do; raises as it does."""
    chosen = parse_options(RewriteDataFilesOptions, options or {})
    metadata = table.metadata
    snapshot = head_to_commit_to(metadata, branch)
    sizes = _sizes(metadata, chosen)
    scan = open_scan(table, where=where, ref=branch, runtime=runtime)
    refuse_delete_files(metadata, scan.listed, "compact")
    files = planned_files(scan, spark, (*CandidateFile.__struct_fields__, "key_metadata"))
    found = [_candidate(row) for row in collected(candidates(files, sizes, rewrite_all=chosen.rewrite_all))]
    current = [file for file in found if file.spec_id == metadata.default_spec_id]
    groups = plan_groups(current, chosen, sizes, _partition_paths(current, metadata), metadata.default_spec_id)
    return RewritePlan(
        branch=branch,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        sequence_number=0 if snapshot is None else snapshot.sequence_number,
        schema_id=metadata.current_schema_id,
        target_file_size_bytes=sizes.target_bytes,
        candidate_files_count=len(found),
        files_to_rewrite_count=sum(g.files_count for g in groups),
        bytes_to_rewrite=sum(g.bytes for g in groups),
        expected_files_count=sum(g.expected_files_count for g in groups),
        other_specs_files_count=len(found) - len(current),
        groups=groups,
    )


def _sizes(metadata: TableMetadata, options: RewriteDataFilesOptions) -> FileSizes:
    if options.output_spec_id not in (None, metadata.default_spec_id):
        if options.output_spec_id not in metadata.specs_by_id:
            raise NotFoundError(f"the table has no partition spec {options.output_spec_id} (option output-spec-id)")
        raise UnsupportedError("option output-spec-id: writing with another than the default spec is not supported yet")
    if metadata.spec.has_unknown_transform:
        raise UnsupportedError(f"partition spec {metadata.default_spec_id} has a transform that is not known")
    return file_sizes(options, write_options(metadata.properties).target_file_size_bytes)


def _candidate(row: Row) -> CandidateFile:
    refuse_encrypted_file(row)
    values = {name: row[name] for name in CandidateFile.__struct_fields__}
    offsets = values["split_offsets"]
    return CandidateFile(
        **{
            **values,
            "partition": bytes(values["partition"]),
            "split_offsets": None if offsets is None else tuple(offsets),
        }
    )


def _partition_paths(files: list[CandidateFile], metadata: TableMetadata) -> dict[bytes, str]:
    codec = PartitionCodec(metadata.partition_type(metadata.default_spec_id))
    return {
        partition: partition_path(metadata.spec, metadata.schema, codec.decode(partition))
        for partition in {file.partition for file in files}
    }
