"""The commands that copy tables: `copy_table`, and `rewrite_table_path` for those who copy the files by other means."""

from collections.abc import Callable

from icekeep.catalog.base import Catalog, Table
from icekeep.events import Listener
from icekeep.maintenance.copy.job import CopyResult, copy_table, plan_copy_table
from icekeep.maintenance.copy.rewrite_path import RewritePathResult, plan_rewrite_table_path, rewrite_table_path
from icekeep.planning.spark.session import SparkSource


def rewrite_path(  # noqa: PLR0913 - a keyword a flag
    table: Table,
    *,
    target_prefix: str,
    source_prefix: str | None = None,
    start_version: str | None = None,
    end_version: str | None = None,
    staging_location: str | None = None,
    no_file_list: bool = False,
    dry_run: bool = False,
    spark: SparkSource = None,
    listener: Listener,
) -> RewritePathResult:
    """Stage metadata for another prefix, or say what would be staged; raises what `rewrite_table_path` raises."""
    rewrite = plan_rewrite_table_path if dry_run else rewrite_table_path
    return rewrite(
        table,
        spark,
        target_prefix=target_prefix,
        source_prefix=source_prefix,
        start_version=start_version,
        end_version=end_version,
        staging_location=staging_location,
        create_file_list=not no_file_list,
        listener=listener,
    )


def copy(  # noqa: PLR0913 - a keyword a flag
    table: Table,
    *,
    to: str,
    to_catalog: str | None = None,
    to_location: str | None = None,
    source_prefix: str | None = None,
    increment: bool = False,
    verify: bool = False,
    dry_run: bool = False,
    open_catalog: Callable[[str], Catalog],
    spark: SparkSource = None,
    listener: Listener,
) -> CopyResult:
    """Copy a table, or say what would be copied; raises what `copy_table` raises."""
    make = plan_copy_table if dry_run else copy_table
    return make(
        table,
        table.catalog if to_catalog is None else open_catalog(to_catalog),
        to,
        spark,
        location=to_location,
        source_prefix=source_prefix,
        increment=increment,
        verify=verify,
        listener=listener,
    )
