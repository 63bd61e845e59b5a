"""Written by `make reference` from the settings of the jobs; nobody edits it."""

from datetime import datetime
from typing import Any

from icekeep.airflow.connections import IcekeepHook as IcekeepHook
from icekeep.airflow.due import TableDueSensor as TableDueSensor
from icekeep.airflow.factory import dags as dags
from icekeep.airflow.installation import Installation as Installation
from icekeep.airflow.job_operators import JobOperator as JobOperator
from icekeep.airflow.operators import MaintenanceOperator as MaintenanceOperator
from icekeep.airflow.provider import table_uri as table_uri

class ExpireRowsOperator(JobOperator):
    """Delete rows above an age, or of any filter: whole files by metadata alone.

    Args:
        task_id: of the task.
        table: CATALOG.NAMESPACE.TABLE, the catalog as the configuration calls it. Templated.
        where: the rows that expire, e.g. "ts < now - 90d". Templated.
        edge: what becomes of files of which only some rows match: keep leaves them until all do, deletes writes deletes
            of positions, rewrite copies the other rows (default: keep). Templated.
        allow_all_rows: go on although the filter matches every row there can be. Templated.
        branch: the branch to work on and to commit to (default: main). Templated.
        snapshot_properties: a key of your own in the summaries of the new snapshots, e.g. ticket=OPS-7; may be
            repeated. Templated.
        spark: whether spark-submit runs it; by default a process of the worker does, which suits small tables.
        dry_run: whether it shows its plan and changes nothing.
        installation: where icekeep is; by default as the variables ICEKEEP_CONFIG, ICEKEEP_PYTHON, ICEKEEP_HOME,
            ICEKEEP_RESULTS, ICEKEEP_DOCS_URL and ICEKEEP_REPORT_URL of the worker say.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog the job has too.
        deferrable: whether a triggerer waits for a job that runs on YARN in cluster mode; for any other the worker
            waits. By default as `[operators] default_deferrable` of Airflow says.
        alias: the asset alias under which a commit is an event; by default there are no events.
        arguments: of `BaseOperator`, and with `spark=True` of `SparkSubmitOperator`, such as `conn_id`.
    """

    def __init__(
        self,
        *,
        task_id: str,
        table: str,
        where: str | None = None,
        edge: str | None = None,
        allow_all_rows: bool | str | None = None,
        branch: str | None = None,
        snapshot_properties: dict[str, str] | None = None,
        spark: bool = False,
        dry_run: bool = False,
        installation: Installation | None = None,
        icekeep_conn_id: str | None = None,
        deferrable: bool | None = None,
        alias: str | None = None,
        **arguments: Any,
    ) -> None: ...

class CompactOperator(JobOperator):
    """Rewrite badly sized data files (Iceberg's rewrite_data_files).

    Args:
        task_id: of the task.
        table: CATALOG.NAMESPACE.TABLE, the catalog as the configuration calls it. Templated.
        strategy: binpack or sort (default: binpack, or sort where an order is given). Templated.
        sort_order: of a sort, e.g. "day, id DESC NULLS LAST", "zorder(a, b)", "hilbert(a, b)" (default: the table's).
            Templated.
        where: only files that may hold rows of a filter, e.g. "day >= '2026-01-01'". Templated.
        options: an option of Iceberg's rewrite_data_files; may be repeated; without max-concurrent-file-group-rewrites
            all groups are tasks of one Spark job. Templated.
        branch: the branch to work on and to commit to (default: main). Templated.
        verify: before each commit, read the new files again and compare the content of all rows. Templated.
        snapshot_properties: a key of your own in the summaries of the new snapshots, e.g. ticket=OPS-7; may be
            repeated. Templated.
        spark: whether spark-submit runs it; by default a process of the worker does, which suits small tables.
        dry_run: whether it shows its plan and changes nothing.
        installation: where icekeep is; by default as the variables ICEKEEP_CONFIG, ICEKEEP_PYTHON, ICEKEEP_HOME,
            ICEKEEP_RESULTS, ICEKEEP_DOCS_URL and ICEKEEP_REPORT_URL of the worker say.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog the job has too.
        deferrable: whether a triggerer waits for a job that runs on YARN in cluster mode; for any other the worker
            waits. By default as `[operators] default_deferrable` of Airflow says.
        alias: the asset alias under which a commit is an event; by default there are no events.
        arguments: of `BaseOperator`, and with `spark=True` of `SparkSubmitOperator`, such as `conn_id`.
    """

    def __init__(
        self,
        *,
        task_id: str,
        table: str,
        strategy: str | None = None,
        sort_order: str | None = None,
        where: str | None = None,
        options: dict[str, Any] | None = None,
        branch: str | None = None,
        verify: bool | str | None = None,
        snapshot_properties: dict[str, str] | None = None,
        spark: bool = False,
        dry_run: bool = False,
        installation: Installation | None = None,
        icekeep_conn_id: str | None = None,
        deferrable: bool | None = None,
        alias: str | None = None,
        **arguments: Any,
    ) -> None: ...

class RewritePositionDeletesOperator(JobOperator):
    """Merge position deletes, drop dangling ones (Iceberg's rewrite_position_delete_files).

    Args:
        task_id: of the task.
        table: CATALOG.NAMESPACE.TABLE, the catalog as the configuration calls it. Templated.
        where: only files that may hold rows of a filter, e.g. "day >= '2026-01-01'". Templated.
        options: an option of Iceberg's rewrite_position_delete_files; may be repeated; without max-concurrent-file-
            group-rewrites all groups are tasks of one Spark job. Templated.
        branch: the branch to work on and to commit to (default: main). Templated.
        convert_equality_deletes: turn equality deletes into position deletes or vectors first. Templated.
        snapshot_properties: a key of your own in the summaries of the new snapshots, e.g. ticket=OPS-7; may be
            repeated. Templated.
        spark: whether spark-submit runs it; by default a process of the worker does, which suits small tables.
        dry_run: whether it shows its plan and changes nothing.
        installation: where icekeep is; by default as the variables ICEKEEP_CONFIG, ICEKEEP_PYTHON, ICEKEEP_HOME,
            ICEKEEP_RESULTS, ICEKEEP_DOCS_URL and ICEKEEP_REPORT_URL of the worker say.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog the job has too.
        deferrable: whether a triggerer waits for a job that runs on YARN in cluster mode; for any other the worker
            waits. By default as `[operators] default_deferrable` of Airflow says.
        alias: the asset alias under which a commit is an event; by default there are no events.
        arguments: of `BaseOperator`, and with `spark=True` of `SparkSubmitOperator`, such as `conn_id`.
    """

    def __init__(
        self,
        *,
        task_id: str,
        table: str,
        where: str | None = None,
        options: dict[str, Any] | None = None,
        branch: str | None = None,
        convert_equality_deletes: bool | str | None = None,
        snapshot_properties: dict[str, str] | None = None,
        spark: bool = False,
        dry_run: bool = False,
        installation: Installation | None = None,
        icekeep_conn_id: str | None = None,
        deferrable: bool | None = None,
        alias: str | None = None,
        **arguments: Any,
    ) -> None: ...

class RewriteManifestsOperator(JobOperator):
    """Cluster and resize manifests (Iceberg's rewrite_manifests).

    Args:
        task_id: of the task.
        table: CATALOG.NAMESPACE.TABLE, the catalog as the configuration calls it. Templated.
        spec_id: the partition spec whose manifests are rewritten, or all (default: the current one). Templated.
        sort_by: cluster by these partition fields, or columns' lower bounds, separated by commas. Templated.
        where: only manifests that match, e.g. "manifest_length < 1000000"; Iceberg's rewriteIf. Templated.
        workload: cluster for these filters over the table, separated by semicolons. Templated.
        use_caching: for compatibility with Iceberg's, without effect: entries are read once. Templated.
        options: remove-dangling-deletes; may be repeated. Templated.
        branch: the branch to work on and to commit to (default: main). Templated.
        snapshot_properties: a key of your own in the summaries of the new snapshots, e.g. ticket=OPS-7; may be
            repeated. Templated.
        spark: whether spark-submit runs it; by default a process of the worker does, which suits small tables.
        dry_run: whether it shows its plan and changes nothing.
        installation: where icekeep is; by default as the variables ICEKEEP_CONFIG, ICEKEEP_PYTHON, ICEKEEP_HOME,
            ICEKEEP_RESULTS, ICEKEEP_DOCS_URL and ICEKEEP_REPORT_URL of the worker say.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog the job has too.
        deferrable: whether a triggerer waits for a job that runs on YARN in cluster mode; for any other the worker
            waits. By default as `[operators] default_deferrable` of Airflow says.
        alias: the asset alias under which a commit is an event; by default there are no events.
        arguments: of `BaseOperator`, and with `spark=True` of `SparkSubmitOperator`, such as `conn_id`.
    """

    def __init__(
        self,
        *,
        task_id: str,
        table: str,
        spec_id: int | str | None = None,
        sort_by: str | None = None,
        where: str | None = None,
        workload: str | None = None,
        use_caching: bool | str | None = None,
        options: dict[str, Any] | None = None,
        branch: str | None = None,
        snapshot_properties: dict[str, str] | None = None,
        spark: bool = False,
        dry_run: bool = False,
        installation: Installation | None = None,
        icekeep_conn_id: str | None = None,
        deferrable: bool | None = None,
        alias: str | None = None,
        **arguments: Any,
    ) -> None: ...

class ComputePartitionStatsOperator(JobOperator):
    """Count files, rows and deletes by partition (Iceberg's compute_partition_stats).

    Args:
        task_id: of the task.
        table: CATALOG.NAMESPACE.TABLE, the catalog as the configuration calls it. Templated.
        snapshot_id: the snapshot that is counted (default: the current one). Templated.
        count_rows: also write total_record_count where metadata alone can tell it; Iceberg Java's next refresh does not
            update it. Templated.
        spark: whether spark-submit runs it; by default a process of the worker does, which suits small tables.
        dry_run: whether it shows its plan and changes nothing.
        installation: where icekeep is; by default as the variables ICEKEEP_CONFIG, ICEKEEP_PYTHON, ICEKEEP_HOME,
            ICEKEEP_RESULTS, ICEKEEP_DOCS_URL and ICEKEEP_REPORT_URL of the worker say.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog the job has too.
        deferrable: whether a triggerer waits for a job that runs on YARN in cluster mode; for any other the worker
            waits. By default as `[operators] default_deferrable` of Airflow says.
        alias: the asset alias under which a commit is an event; by default there are no events.
        arguments: of `BaseOperator`, and with `spark=True` of `SparkSubmitOperator`, such as `conn_id`.
    """

    def __init__(
        self,
        *,
        task_id: str,
        table: str,
        snapshot_id: int | str | None = None,
        count_rows: bool | str | None = None,
        spark: bool = False,
        dry_run: bool = False,
        installation: Installation | None = None,
        icekeep_conn_id: str | None = None,
        deferrable: bool | None = None,
        alias: str | None = None,
        **arguments: Any,
    ) -> None: ...

class ComputeTableStatsOperator(JobOperator):
    """Count the distinct values of columns by theta sketches (Iceberg's compute_table_stats).

    Args:
        task_id: of the task.
        table: CATALOG.NAMESPACE.TABLE, the catalog as the configuration calls it. Templated.
        snapshot_id: the snapshot whose rows are read (default: the current one). Templated.
        columns: the columns, separated by commas, with dots for those in structs (default: all of a primitive type).
            Templated.
        spark: whether spark-submit runs it; by default a process of the worker does, which suits small tables.
        dry_run: whether it shows its plan and changes nothing.
        installation: where icekeep is; by default as the variables ICEKEEP_CONFIG, ICEKEEP_PYTHON, ICEKEEP_HOME,
            ICEKEEP_RESULTS, ICEKEEP_DOCS_URL and ICEKEEP_REPORT_URL of the worker say.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog the job has too.
        deferrable: whether a triggerer waits for a job that runs on YARN in cluster mode; for any other the worker
            waits. By default as `[operators] default_deferrable` of Airflow says.
        alias: the asset alias under which a commit is an event; by default there are no events.
        arguments: of `BaseOperator`, and with `spark=True` of `SparkSubmitOperator`, such as `conn_id`.
    """

    def __init__(
        self,
        *,
        task_id: str,
        table: str,
        snapshot_id: int | str | None = None,
        columns: str | None = None,
        spark: bool = False,
        dry_run: bool = False,
        installation: Installation | None = None,
        icekeep_conn_id: str | None = None,
        deferrable: bool | None = None,
        alias: str | None = None,
        **arguments: Any,
    ) -> None: ...

class ExpireSnapshotsOperator(JobOperator):
    """Expire snapshots by retention, then delete the files that only they needed.

    Args:
        task_id: of the task.
        table: CATALOG.NAMESPACE.TABLE, the catalog as the configuration calls it. Templated.
        older_than: expire snapshots older than a time or an age (default: as the table says). Templated.
        retain_last: keep this many snapshots of each branch at least. Templated.
        snapshot_ids: expire these snapshots, whatever their age. Templated.
        clean_expired_metadata: drop schemas and partition specs that no snapshot needs any more. Templated.
        clean: which files of expired snapshots go: all, metadata (no data and no delete files), or none (default: all).
            Templated.
        max_concurrent_deletes: how many calls that delete run at once, at most. Templated.
        stream_results: for compatibility with Iceberg's, without effect: lists of files are always streamed. Templated.
        trash: for how long deleted files can be restored, as 3 or 3d; 0 deletes at once (default: 3d on local disks and
            HDFS, else 0). Templated.
        approve: the hash that --dry-run prints: do exactly that, or nothing. Templated.
        trust_manifest_list: go on where a snapshot's summary and its manifest list disagree on the number of files.
            Templated.
        options: grace, keep-writer-progress, readers.max-lag, readers.spark-checkpoints, max-deletes-per-second,
            reclaim.roots; may be repeated. Templated.
        spark: whether spark-submit runs it; by default a process of the worker does, which suits small tables.
        dry_run: whether it shows its plan and changes nothing.
        installation: where icekeep is; by default as the variables ICEKEEP_CONFIG, ICEKEEP_PYTHON, ICEKEEP_HOME,
            ICEKEEP_RESULTS, ICEKEEP_DOCS_URL and ICEKEEP_REPORT_URL of the worker say.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog the job has too.
        deferrable: whether a triggerer waits for a job that runs on YARN in cluster mode; for any other the worker
            waits. By default as `[operators] default_deferrable` of Airflow says.
        alias: the asset alias under which a commit is an event; by default there are no events.
        arguments: of `BaseOperator`, and with `spark=True` of `SparkSubmitOperator`, such as `conn_id`.
    """

    def __init__(
        self,
        *,
        task_id: str,
        table: str,
        older_than: str | datetime | None = None,
        retain_last: int | str | None = None,
        snapshot_ids: int | str | list[int] | None = None,
        clean_expired_metadata: bool | str | None = None,
        clean: str | None = None,
        max_concurrent_deletes: int | str | None = None,
        stream_results: bool | str | None = None,
        trash: str | None = None,
        approve: str | None = None,
        trust_manifest_list: bool | str | None = None,
        options: dict[str, Any] | None = None,
        spark: bool = False,
        dry_run: bool = False,
        installation: Installation | None = None,
        icekeep_conn_id: str | None = None,
        deferrable: bool | None = None,
        alias: str | None = None,
        **arguments: Any,
    ) -> None: ...

class RemoveOrphanFilesOperator(JobOperator):
    """Delete files that no snapshot refers to (Iceberg's remove_orphan_files).

    Args:
        task_id: of the task.
        table: CATALOG.NAMESPACE.TABLE, the catalog as the configuration calls it. Templated.
        older_than: files that are older than a time or an age, 24h at least (default: 3d). Templated.
        location: the directory to look at (default: the table's location). Templated.
        max_concurrent_deletes: how many calls that delete run at once, at most. Templated.
        file_list_view: a view, table or Parquet inventory of files, in place of a listing. Templated.
        equal_schemes: schemes that mean one store, e.g. s3a,s3n=s3; may be repeated. Templated.
        equal_authorities: authorities that mean one store, e.g. nn1,nn2=nn; may be repeated. Templated.
        prefix_mismatch_mode: where only scheme or authority differ (default: ERROR). Templated.
        prefix_listing: for compatibility with Iceberg's, without effect: listings are always flat. Templated.
        stream_results: for compatibility with Iceberg's, without effect: lists of files are always streamed. Templated.
        trash: for how long deleted files can be restored, as 3 or 3d; 0 deletes at once (default: 3d on local disks and
            HDFS, else 0). Templated.
        approve: the hash that --dry-run prints: do exactly that, or nothing. Templated.
        force: go on although more than max-orphan-ratio of the files would go. Templated.
        trust_manifest_list: go on where a snapshot's summary and its manifest list disagree on the number of files.
            Templated.
        accept_unreadable: go on although these tables of the catalog cannot be loaded, since they lie elsewhere.
            Templated.
        options: grace, max-orphan-ratio, ignore-metadata-of, max-deletes-per-second, reclaim.roots; may be repeated.
            Templated.
        spark: whether spark-submit runs it; by default a process of the worker does, which suits small tables.
        dry_run: whether it shows its plan and changes nothing.
        installation: where icekeep is; by default as the variables ICEKEEP_CONFIG, ICEKEEP_PYTHON, ICEKEEP_HOME,
            ICEKEEP_RESULTS, ICEKEEP_DOCS_URL and ICEKEEP_REPORT_URL of the worker say.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog the job has too.
        deferrable: whether a triggerer waits for a job that runs on YARN in cluster mode; for any other the worker
            waits. By default as `[operators] default_deferrable` of Airflow says.
        alias: the asset alias under which a commit is an event; by default there are no events.
        arguments: of `BaseOperator`, and with `spark=True` of `SparkSubmitOperator`, such as `conn_id`.
    """

    def __init__(
        self,
        *,
        task_id: str,
        table: str,
        older_than: str | datetime | None = None,
        location: str | None = None,
        max_concurrent_deletes: int | str | None = None,
        file_list_view: str | None = None,
        equal_schemes: dict[str, str] | None = None,
        equal_authorities: dict[str, str] | None = None,
        prefix_mismatch_mode: str | None = None,
        prefix_listing: bool | str | None = None,
        stream_results: bool | str | None = None,
        trash: str | None = None,
        approve: str | None = None,
        force: bool | str | None = None,
        trust_manifest_list: bool | str | None = None,
        accept_unreadable: str | list[str] | None = None,
        options: dict[str, Any] | None = None,
        spark: bool = False,
        dry_run: bool = False,
        installation: Installation | None = None,
        icekeep_conn_id: str | None = None,
        deferrable: bool | None = None,
        alias: str | None = None,
        **arguments: Any,
    ) -> None: ...

class CheckOperator(JobOperator):
    """Check a table against the spec: its metadata, manifests and files, with --deep their rows.

    Args:
        task_id: of the task.
        table: CATALOG.NAMESPACE.TABLE, the catalog as the configuration calls it. Templated.
        deep: read data and delete files too, and hold what metadata says of them against their rows. Templated.
        all_of: show every fault of these kinds, by number, and not only the first 20. Templated.
        ref: only the snapshot of this branch or tag (default: all snapshots). Templated.
        spark: whether spark-submit runs it; by default a process of the worker does, which suits small tables.
        dry_run: whether it shows its plan and changes nothing.
        installation: where icekeep is; by default as the variables ICEKEEP_CONFIG, ICEKEEP_PYTHON, ICEKEEP_HOME,
            ICEKEEP_RESULTS, ICEKEEP_DOCS_URL and ICEKEEP_REPORT_URL of the worker say.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog the job has too.
        deferrable: whether a triggerer waits for a job that runs on YARN in cluster mode; for any other the worker
            waits. By default as `[operators] default_deferrable` of Airflow says.
        alias: the asset alias under which a commit is an event; by default there are no events.
        arguments: of `BaseOperator`, and with `spark=True` of `SparkSubmitOperator`, such as `conn_id`.
    """

    def __init__(
        self,
        *,
        task_id: str,
        table: str,
        deep: bool | str | None = None,
        all_of: int | str | list[int] | None = None,
        ref: str | None = None,
        spark: bool = False,
        dry_run: bool = False,
        installation: Installation | None = None,
        icekeep_conn_id: str | None = None,
        deferrable: bool | None = None,
        alias: str | None = None,
        **arguments: Any,
    ) -> None: ...
