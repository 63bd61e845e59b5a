"""The job `remove_orphan_files`: files that no metadata leads to.

listing -> metadata, loaded after it -> everything that it leads to -> compared by path -> plan on disk -> looked at again -> gone
"""

from collections.abc import Mapping, Sequence
from typing import Any

from icekeep.catalog.base import Table
from icekeep.maintenance.deletion.given_files import GivenDeletion
from icekeep.maintenance.deletion.options import OrphanOptions, accepted_names, asked_trash_days, checked_options
from icekeep.maintenance.exact_plans import ExactPlan
from icekeep.maintenance.orphans.candidates import KeptFiles
from icekeep.maintenance.orphans.checks import checked_root
from icekeep.maintenance.orphans.execute import remove_orphans
from icekeep.maintenance.orphans.options import Search, mismatch_mode, spelling
from icekeep.maintenance.orphans.plan import RemoveOrphanFilesPlan, exact_orphans, plan_orphans
from icekeep.maintenance.orphans.result import RemoveOrphanFilesResult, result
from icekeep.maintenance.requests import PlannedRequest, takes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.times import Days, Moment

__all__ = [
    "KeptFiles",
    "RemoveOrphanFilesPlan",
    "RemoveOrphanFilesResult",
    "check_arguments",
    "plan_remove_orphan_files",
    "remove_orphan_files",
]


class RemoveOrphanFilesRequest(PlannedRequest, frozen=True, kw_only=True):
    """The arguments of `remove_orphan_files`, which says what each means."""

    older_than: Moment | None = None
    location: str | None = None
    max_concurrent_deletes: int | None = None
    file_list_view: str | None = None
    equal_schemes: Mapping[str, str] | None = None
    equal_authorities: Mapping[str, str] | None = None
    prefix_mismatch_mode: str = "ERROR"
    prefix_listing: bool = False
    stream_results: bool = False
    trash: Days | None = None
    approve: str | None = None
    force: bool = False
    trust_manifest_list: bool = False
    accept_unreadable: Sequence[str] = ()
    options: Mapping[str, Any] | OrphanOptions | None = None

    def search(self) -> Search:
        """The arguments, checked; raises what the job raises for a wrong one."""
        days = asked_trash_days(self.trash)
        return Search(
            older_than=self.older_than,
            location=self.location,
            file_list_view=self.file_list_view,
            spelling=spelling(self.equal_schemes, self.equal_authorities),
            mode=mismatch_mode(self.prefix_mismatch_mode),
            trash=days,
            approve=self.approve if self.given is None else self.given.approve,
            force=self.force,
            trust_manifest_list=self.trust_manifest_list,
            max_concurrent_deletes=self.max_concurrent_deletes,
            accept_unreadable=accepted_names(self.accept_unreadable),
            options=checked_options(OrphanOptions, self.options, self.max_concurrent_deletes, days),
            given=None if self.given is None else GivenDeletion.of(self.given),
        )


@takes(RemoveOrphanFilesRequest)
def remove_orphan_files(table: Table, request: RemoveOrphanFilesRequest) -> RemoveOrphanFilesResult:
    """Delete the files below a directory that no metadata of the table leads to.

    Files are listed first and metadata is loaded after that, and once more right before the deletion. Metadata files in no
    log go too, but for versions that a catalog may find by name. Hidden names (`_x`, `.x`) are not looked at, unless they are
    directories of partitions; directories are never deleted and links never followed.

    Args:
        older_than: a moment, or how long ago, at least a day by our clock and by the store's; only files that were written
            before it go. Three days ago if `None`.
        location: the directory that is listed; the table's location if `None`. As for Iceberg `write.data.path` and
            `write.metadata.path` are not listed where they lie elsewhere: name them here, and as `reclaim.roots`.
        max_concurrent_deletes: so many calls that delete at once, at most; as many as there is work for if `None`.
        file_list_view: in place of a listing a view or table of this Spark session, or the location of Parquet, ORC or CSV
            files, with the columns `file_path` and `last_modified`, or those of an S3 inventory. Of it only what lies below
            the location is looked at, by whole names of directories.
        equal_schemes: which schemes are the same, as `{"oss,minio": "s3"}`; that `s3a` is `s3` and the like is known.
        equal_authorities: which authorities are the same, as `{"nn1,nn2": "nn"}`.
        prefix_mismatch_mode: what becomes of a file that metadata has under another scheme or authority: `ERROR` refuses,
            `IGNORE` keeps it. Iceberg's `DELETE` is not offered.
        prefix_listing: accepted; listings are always by prefix.
        stream_results: accepted; results are never held whole.
        trash: for how many days files stay in the trash; 0 deletes at once, `None` is 3 on local disks and HDFS, 0 elsewhere.
        approve: the hash of the plan that may be carried out; nothing goes if it is another one.
        force: delete although more than `max-orphan-ratio` of the listed files would go.
        trust_manifest_list: believe manifest lists although the summaries of snapshots count other files.
        accept_unreadable: names of tables of the catalog (`db.events`) that cannot be loaded, and of which the operator knows
            that they lie elsewhere; all other tables that cannot be loaded, and whose location the catalog does not know, refuse.
        options: `max-orphan-ratio`, `max-deletes-per-second`, `reclaim.roots`, `grace`; `ignore-metadata-of`, uuids of dead
            tables, whose metadata files are garbage once they are as old as other orphans. The table's own uuid means metadata
            that is further on than the current one, of a commit that died before it landed.
        given: a plan that was written before (`apply_plan` reads it): exactly that goes, or nothing.

    Raises:
        UsageError: `older_than` is less than a day ago, or an argument cannot be what it is.
        SafetyError: the table has `gc.enabled=false`; another table may have files in the same place; not everything that the
            table leads to can be read; paths are spelled in different ways; or too great a share of the files would go.
        UnsupportedError: the table is encrypted, or the mode is `DELETE`.
        TryAgainError: the catalog or the store is out of reach, or a commit to the table is under way.
    """
    removal = remove_orphans(table, request.spark, request.search(), request.listener, table.runtime)
    return result(removal)


@takes(RemoveOrphanFilesRequest)
def plan_remove_orphan_files(table: Table, request: RemoveOrphanFilesRequest) -> RemoveOrphanFilesPlan:
    """Say what `remove_orphan_files` with the same arguments would do; raises as it does, but for a share that is too great."""
    return plan_orphans(table, request.spark, request.search(), table.runtime, request.listener)


@takes(RemoveOrphanFilesRequest, "remove_orphan_files")
def exact_remove_orphan_files(table: Table, request: RemoveOrphanFilesRequest) -> ExactPlan:
    """What `remove_orphan_files` with the same arguments would do, with all files; raises as `plan_remove_orphan_files`."""
    return exact_orphans(table, request.spark, request.search(), table.runtime, request.listener)


@takes(RemoveOrphanFilesRequest)
def check_arguments(metadata: TableMetadata, request: RemoveOrphanFilesRequest) -> None:
    """Hold the arguments against the table, before anything is listed; `older_than` waits for the store's clock.

    Raises:
        SafetyError: the location is icekeep's own.
        UnsupportedError: the table is encrypted, or the mode is `DELETE`.
        UsageError: the location is none.
        OptionError: an argument has a value that it cannot take.
    """
    checked_root(metadata, request.search())
