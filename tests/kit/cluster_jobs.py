"""Every job with arguments that give it work on a `ClusterTable`, and what shows that it was done."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from kit.cluster_tables import ClusterTable
from kit.object_store import ObjectStore
from kit.shell import Finished

OLD = timedelta(days=4)
"""Files of this age are removed by a removal of orphans that is told nothing."""


class JobCase(NamedTuple):
    """A job as it is submitted.

    Attributes:
        worked: whether its result says so.
        operations: of the snapshots that it adds, one choice or another.
        status: that it ends with.
    """

    job: str
    arguments: tuple[str, ...]
    worked: Callable[[dict[str, Any]], object]
    operations: tuple[tuple[str, ...], ...] = ((),)
    status: str = "done"


_ALL = ("--option", "rewrite-all=true")
_AT_ONCE = ("--trash", "0", "--option", "grace=0s")

JOBS = {
    "compact": JobCase(
        "compact",
        _ALL,
        lambda r: (r["rewritten_data_files_count"], r["added_data_files_count"]) == (12, 3),
        (("replace",),),
    ),
    "compact-sorted": JobCase(
        "compact",
        ("--strategy", "sort", "--sort-order", "kind, id", *_ALL),
        lambda r: (r["rewritten_data_files_count"], r["added_data_files_count"]) == (12, 3),
        (("replace",),),
    ),
    "position-deletes": JobCase(
        "rewrite_position_deletes", _ALL, lambda r: r["rewritten_delete_files_count"] == 6, (("replace",),)
    ),
    "equality-deletes": JobCase(
        "rewrite_position_deletes",
        ("--convert-equality-deletes", *_ALL),
        lambda r: r["conversion"]["converted_equality_delete_files_count"] == 1,
        (("delete",), ("delete", "replace")),
    ),
    "manifests": JobCase(
        "rewrite_manifests",
        ("--spec-id", "all"),
        lambda r: r["rewritten_manifests_count"] > r["added_manifests_count"],
        (("replace",),),
    ),
    "expire": JobCase(
        "expire_snapshots",
        ("--older-than", "0s", "--retain-last", "1", *_AT_ONCE),
        lambda r: (
            r["expired_snapshots_count"] == r["deleted_manifest_lists_count"] > 0 and r["deleted_data_files_count"] >= 1
        ),
    ),
    "orphans": JobCase(
        "remove_orphan_files",
        _AT_ONCE,
        lambda r: r["orphan_files_count"] == r["deleted_files_count"] == 1,
    ),
    "plan": JobCase(
        "plan_scan", (), lambda r: r["data_files_count"] == 12 and r["deletes"]["equality_delete_files_count"]
    ),
    "check": JobCase("check", ("--deep",), lambda r: r["entries_count"] and not r["not_checked"], status="sound"),
    "purge": JobCase("drop", ("--purge",), lambda r: r["is_purged"] and r["deleted_files_count"] > 20),
}
"""By a short name."""


def add_orphan(table: ClusterTable) -> None:
    """A file that nobody names; it is removed when it is `OLD`."""
    now = table.table
    now.storage.create(f"{now.metadata.location}/data/nobody.parquet", b"x")


def make_older(store: ObjectStore, table: ClusterTable) -> None:
    """All files of a table on S3 were written days ago."""
    store.make_older(table.table.metadata.location.removeprefix("s3://").partition("/")[0], OLD)


def prepared(name: str, table: ClusterTable, age: Callable[[ClusterTable], object]) -> tuple[JobCase, list[str]]:
    """Give a job its work: what it is, and the operations of the snapshots before it.

    Args:
        age: makes all files of a table days old.
    """
    if name == "orphans":
        add_orphan(table)
        age(table)
    return JOBS[name], table.operations()


def check_done(case: JobCase, done: Finished, table: ClusterTable, before: list[str]) -> None:
    """The job has ended well, has done its work, has committed it once, and no row is another.

    Args:
        before: the operations of the table's snapshots before the run.
    """
    assert done.status == 0, done.out[-2000:] + done.err[-4000:]
    check_result(case, done.json, table, before)


def check_result(case: JobCase, document: dict[str, Any], table: ClusterTable, before: list[str]) -> None:
    """The same of a document that the job has printed elsewhere."""
    assert document["status"] == case.status, document
    assert case.worked(document["result"]), document["result"]
    check_table(case, table, before)


def check_table(case: JobCase, table: ClusterTable, before: list[str]) -> None:
    """What the job does has been committed, once, and no row is another."""
    if case.job == "drop":
        assert not table.is_there
        return
    operations = table.operations()
    if case.job == "expire_snapshots":
        assert len(operations) == 1
    else:
        assert operations in [[*before, *some] for some in case.operations]
    table.check()
