"""icekeep keeps Apache Iceberg tables healthy from PySpark, with no Iceberg JVM jar.

    from icekeep import compact, load_catalog

    table = load_catalog("local").load("demo.flights")
    compact(table, spark, where="month >= 6")

This is the door; each name is imported when it is first used, so that `import icekeep` needs neither Spark nor Arrow.
Reading order: `catalog/base.py` (a table), `spec/metadata.py`, `planning/scan/plan.py`, `maintenance/`, `commit/retry.py`.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icekeep.catalog.base import Catalog, Table
    from icekeep.errors import IcekeepError
    from icekeep.maintenance.compaction.job import compact, plan_compaction
    from icekeep.maintenance.equality_deletes.job import convert_equality_deletes, plan_convert_equality_deletes
    from icekeep.maintenance.expiration.job import expire_snapshots, plan_expire_snapshots
    from icekeep.maintenance.manifests.job import plan_rewrite_manifests, rewrite_manifests
    from icekeep.maintenance.orphans.job import plan_remove_orphan_files, remove_orphan_files
    from icekeep.maintenance.position_deletes.job import plan_rewrite_position_deletes, rewrite_position_deletes
    from icekeep.maintenance.purge.job import drop_table, plan_drop_table
    from icekeep.maintenance.registering import register_table
    from icekeep.maintenance.restoring.job import list_restorable, restore
    from icekeep.operations.loading import load_catalog
    from icekeep.operations.session import build_session
    from icekeep.planning.scan.explain import explain_file
    from icekeep.planning.scan.report import plan_scan
    from icekeep.planning.scan.task_groups import plan_tasks
    from icekeep.spec.evolution.partition_evolution import (
        AddPartitionField,
        RemovePartitionField,
        RenamePartitionField,
    )
    from icekeep.spec.evolution.schema_changes import (
        AddColumn,
        DropColumn,
        MakeOptional,
        MoveAfter,
        MoveBefore,
        MoveFirst,
        RenameColumn,
        RequireColumn,
        RestoreColumn,
        SetIdentifierFields,
        SetWriteDefault,
        UpdateColumnDoc,
        UpdateColumnType,
    )
    from icekeep.spec.sorting import (
        SortKey,
    )
    from icekeep.tables.append import append
    from icekeep.tables.create import create_table
    from icekeep.tables.refs import (
        create_branch,
        create_tag,
        drop_branch,
        drop_tag,
        fast_forward,
        rename_branch,
        replace_branch,
        replace_tag,
        set_ref_retention,
    )
    from icekeep.tables.rollback import (
        cherrypick_snapshot,
        publish_changes,
        rollback_to_snapshot,
        rollback_to_timestamp,
        set_current_snapshot,
    )
    from icekeep.tables.scan import scan
    from icekeep.tables.update_schema import update_schema
    from icekeep.tables.update_sort_order import update_sort_order
    from icekeep.tables.update_spec import update_spec
    from icekeep.tables.upgrade_format_version import upgrade_format_version

__all__ = [
    "AddColumn",
    "AddPartitionField",
    "Catalog",
    "DropColumn",
    "IcekeepError",
    "MakeOptional",
    "MoveAfter",
    "MoveBefore",
    "MoveFirst",
    "RemovePartitionField",
    "RenameColumn",
    "RenamePartitionField",
    "RequireColumn",
    "RestoreColumn",
    "SetIdentifierFields",
    "SetWriteDefault",
    "SortKey",
    "Table",
    "UpdateColumnDoc",
    "UpdateColumnType",
    "append",
    "build_session",
    "cherrypick_snapshot",
    "compact",
    "convert_equality_deletes",
    "create_branch",
    "create_table",
    "create_tag",
    "drop_branch",
    "drop_table",
    "drop_tag",
    "expire_snapshots",
    "explain_file",
    "fast_forward",
    "list_restorable",
    "load_catalog",
    "plan_compaction",
    "plan_convert_equality_deletes",
    "plan_drop_table",
    "plan_expire_snapshots",
    "plan_remove_orphan_files",
    "plan_rewrite_manifests",
    "plan_rewrite_position_deletes",
    "plan_scan",
    "plan_tasks",
    "publish_changes",
    "register_table",
    "remove_orphan_files",
    "rename_branch",
    "replace_branch",
    "replace_tag",
    "restore",
    "rewrite_manifests",
    "rewrite_position_deletes",
    "rollback_to_snapshot",
    "rollback_to_timestamp",
    "scan",
    "set_current_snapshot",
    "set_ref_retention",
    "update_schema",
    "update_sort_order",
    "update_spec",
    "upgrade_format_version",
]

_HOMES = {
    "AddColumn": "icekeep.spec.evolution.schema_changes",
    "AddPartitionField": "icekeep.spec.evolution.partition_evolution",
    "Catalog": "icekeep.catalog.base",
    "DropColumn": "icekeep.spec.evolution.schema_changes",
    "IcekeepError": "icekeep.errors",
    "MakeOptional": "icekeep.spec.evolution.schema_changes",
    "MoveAfter": "icekeep.spec.evolution.schema_changes",
    "MoveBefore": "icekeep.spec.evolution.schema_changes",
    "MoveFirst": "icekeep.spec.evolution.schema_changes",
    "RemovePartitionField": "icekeep.spec.evolution.partition_evolution",
    "RenameColumn": "icekeep.spec.evolution.schema_changes",
    "RenamePartitionField": "icekeep.spec.evolution.partition_evolution",
    "RequireColumn": "icekeep.spec.evolution.schema_changes",
    "RestoreColumn": "icekeep.spec.evolution.schema_changes",
    "SetIdentifierFields": "icekeep.spec.evolution.schema_changes",
    "SetWriteDefault": "icekeep.spec.evolution.schema_changes",
    "SortKey": "icekeep.spec.sorting",
    "Table": "icekeep.catalog.base",
    "UpdateColumnDoc": "icekeep.spec.evolution.schema_changes",
    "UpdateColumnType": "icekeep.spec.evolution.schema_changes",
    "append": "icekeep.tables.append",
    "build_session": "icekeep.operations.session",
    "cherrypick_snapshot": "icekeep.tables.rollback",
    "compact": "icekeep.maintenance.compaction.job",
    "convert_equality_deletes": "icekeep.maintenance.equality_deletes.job",
    "create_branch": "icekeep.tables.refs",
    "create_table": "icekeep.tables.create",
    "create_tag": "icekeep.tables.refs",
    "drop_branch": "icekeep.tables.refs",
    "drop_table": "icekeep.maintenance.purge.job",
    "drop_tag": "icekeep.tables.refs",
    "expire_snapshots": "icekeep.maintenance.expiration.job",
    "explain_file": "icekeep.planning.scan.explain",
    "fast_forward": "icekeep.tables.refs",
    "list_restorable": "icekeep.maintenance.restoring.job",
    "load_catalog": "icekeep.operations.loading",
    "plan_compaction": "icekeep.maintenance.compaction.job",
    "plan_convert_equality_deletes": "icekeep.maintenance.equality_deletes.job",
    "plan_drop_table": "icekeep.maintenance.purge.job",
    "plan_expire_snapshots": "icekeep.maintenance.expiration.job",
    "plan_remove_orphan_files": "icekeep.maintenance.orphans.job",
    "plan_rewrite_manifests": "icekeep.maintenance.manifests.job",
    "plan_rewrite_position_deletes": "icekeep.maintenance.position_deletes.job",
    "plan_scan": "icekeep.planning.scan.report",
    "plan_tasks": "icekeep.planning.scan.task_groups",
    "publish_changes": "icekeep.tables.rollback",
    "register_table": "icekeep.maintenance.registering",
    "remove_orphan_files": "icekeep.maintenance.orphans.job",
    "rename_branch": "icekeep.tables.refs",
    "replace_branch": "icekeep.tables.refs",
    "replace_tag": "icekeep.tables.refs",
    "restore": "icekeep.maintenance.restoring.job",
    "rewrite_manifests": "icekeep.maintenance.manifests.job",
    "rewrite_position_deletes": "icekeep.maintenance.position_deletes.job",
    "rollback_to_snapshot": "icekeep.tables.rollback",
    "rollback_to_timestamp": "icekeep.tables.rollback",
    "scan": "icekeep.tables.scan",
    "set_current_snapshot": "icekeep.tables.rollback",
    "set_ref_retention": "icekeep.tables.refs",
    "update_schema": "icekeep.tables.update_schema",
    "update_sort_order": "icekeep.tables.update_sort_order",
    "update_spec": "icekeep.tables.update_spec",
    "upgrade_format_version": "icekeep.tables.upgrade_format_version",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("icekeep")
    if name not in _HOMES:
        raise AttributeError(f"module 'icekeep' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
