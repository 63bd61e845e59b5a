"""One run of compaction: its arguments, understood, and what each of its steps is done with."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from icekeep.catalog.base import Table
from icekeep.commit.file_sets import Digest, entry_digest
from icekeep.commit.filtering import without_history
from icekeep.errors import NotFoundError
from icekeep.events import Listener
from icekeep.formats.options import write_options
from icekeep.maintenance.compaction.commits import Commits, foreseen_removals
from icekeep.maintenance.compaction.estimate import Estimate, RewriteMethod, Work, estimate
from icekeep.maintenance.compaction.execute import Execution
from icekeep.maintenance.compaction.given_groups import plan_given
from icekeep.maintenance.compaction.group_tasks import GroupWork
from icekeep.maintenance.compaction.methods import GroupMethod, choose_methods
from icekeep.maintenance.compaction.options import RewriteDataFilesOptions
from icekeep.maintenance.compaction.plan import FileGroup, RewritePlan, group_files, plan_locations
from icekeep.maintenance.compaction.planner import measured_overlap, plan
from icekeep.maintenance.compaction.removed_files import store_removed_files
from icekeep.maintenance.compaction.stitched import Metrics, MetricsInParts, metrics_of
from icekeep.maintenance.compaction.strategy import chosen_strategy, order_summary
from icekeep.maintenance.compaction.tasks import GroupContext
from icekeep.maintenance.deletion.neighbours import refuse_files_of_others
from icekeep.maintenance.exact_plans import held_removals
from icekeep.maintenance.figures import or_warned
from icekeep.maintenance.groups.file_sizes import FileSizes, file_sizes
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.requests import CommittingRequest
from icekeep.maintenance.runs.names import run_name
from icekeep.maintenance.runs.written_files import WRITTEN, WrittenFiles
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.scan.plan import open_scan
from icekeep.planning.spark.workers import Workers, chosen_workers
from icekeep.runtime import Runtime
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import own_directory
from icekeep.spec.snapshots import MAIN
from icekeep.spec.types import GIB
from icekeep.tables.refs import head_to_commit_to

Options = Mapping[str, Any] | RewriteDataFilesOptions

BUDGET_BYTES = GIB
"""The memory that a task orders rows in before it puts some on disk."""


class CompactRequest(CommittingRequest, frozen=True, kw_only=True):
    """The arguments of `compact`, which says what each means."""

    strategy: str | None = None
    sort_order: str | None = None
    where: str | Expression = ALWAYS_TRUE
    options: Options | None = None
    branch: str = MAIN
    verify: bool = False


class Run:
    """One run: its arguments, understood, and the version of the table that it works on.

    `only` names the files that it may rewrite, `None` for all; `number` is that of its plan.
    """

    def __init__(
        self,
        table: Table,
        request: CompactRequest,
        runtime: Runtime,
        only: frozenset[str] | None = None,
        number: int = 1,
    ) -> None:
        self.table, self.runtime = table, runtime
        self._request, self._only, self._number = request, only, number
        self.options = parse_options(RewriteDataFilesOptions, request.options or {})
        self.strategy = chosen_strategy(request.strategy, request.sort_order, table.metadata, self.options)
        self.sizes = chosen_sizes(table.metadata, self.options)
        head_to_commit_to(table.metadata, request.branch)
        self.scan = open_scan(table, where=request.where, ref=request.branch, for_commit=True)
        self.where, self.branch = request.where, request.branch
        self.spark = request.spark
        self.run_id = run_name(table, number)

    def on(self, table: Table, only: frozenset[str] | None) -> "Run":
        """The same on another version of the table, for some files, or all as before."""
        return Run(table, self._request, self.runtime, only, self._number + 1)

    def plan(self, directory: str | None) -> RewritePlan:
        """The groups, those of the plan that was given if one was; `directory` as for `planner.plan`.

        Raises:
            SafetyError: a file that is to be read lies in a place of another table.
        """
        planned = self._planned(directory)
        storage = self.table.storage
        read = (group_files(group, storage) for group in planned.groups if group.has_files)
        named = ([*(f.file_path for f in some.files), *(d.file_path for d in some.deletes)] for some in read)
        refuse_files_of_others(self.table, named)
        return planned

    def _planned(self, directory: str | None) -> RewritePlan:
        if self._request.given is not None:
            return plan_given(self.scan, self.spark, self.strategy, self.options, self._request.given, directory)
        return plan(
            self.scan,
            self.spark,
            self.strategy,
            self.options,
            branch=self.branch,
            only=self._only,
            directory=directory,
        )

    @contextmanager
    def kept_plan(self) -> Iterator[RewritePlan]:
        """The plan, with what is put in storage for as long as the block runs."""
        directory = own_directory(self.table.metadata, f"plans/{self.run_id}")
        storage = self.table.storage
        locations: Iterable[str] = ()
        try:
            planned = self.plan(directory)
            locations = plan_locations(planned)
            yield planned
        except BaseException:
            # Tasks that succeeded beside one that failed have told nobody what they wrote.
            with suppress(Exception):
                locations = locations or [file.location for file in storage.list(directory)]
                moves = own_directory(self.table.metadata, f"runs/{self.run_id}")
                # Names of files that tasks were writing stay until it is known what became of them.
                found = (file.location for file in storage.list(moves))
                storage.delete_many([location for location in found if f"/{WRITTEN}/" not in location])
            raise
        finally:
            # After a commit nothing that is left behind makes the run a failed one; a later run sweeps it.
            with suppress(Exception):
                storage.delete_many(locations)

    def workers(self, planned: RewritePlan) -> Workers:
        """Who rewrites the groups."""
        deletes_bytes = sum(group.delete_bytes for group in planned.groups)
        deletes_count = sum(group.delete_files_count for group in planned.groups)
        return chosen_workers(
            self.spark,
            planned.rewritten_bytes_count + deletes_bytes,
            planned.rewritten_data_files_count + deletes_count,
        )

    def context(self, workers: Workers) -> GroupContext:
        """What all tasks have in common."""
        return GroupContext(
            metadata=without_history(self.table.metadata),
            sizes=self.sizes,
            ordering=self.strategy.ordering,
            sort_order_id=self.strategy.sort_order_id,
            run_id=self.run_id,
            budget_bytes=BUDGET_BYTES,
            moves_pages=self.options.stitch != "never",
            slots=workers.process_slots,
            is_local=workers.is_local,
            verifies=self._request.verify,
        )

    def methods(self, planned: RewritePlan, workers: Workers) -> dict[int, GroupMethod]:
        """How each group is rewritten."""
        context, options = self.context(workers), self.options
        storage = self.table.storage
        return choose_methods(planned, context, options.stitch, options.min_input_files, storage, workers)

    def metrics(self, groups: Iterable[FileGroup], methods: Mapping[int, GroupMethod]) -> dict[str, Metrics]:
        """What manifests say of the files of some groups that are put together byte for byte."""
        paths: set[str] = set()
        manifests: set[str] = set()
        for group in groups:
            if not methods[group.number].stitched:
                continue
            files = group_files(group, self.table.storage).files
            for some in methods[group.number].stitched:
                paths.update(files[position].file_path for position in some)
                manifests.update(files[position].manifest_path for position in some)
        return metrics_of(self.scan, self.spark, paths, manifests) if paths else {}

    def execution(
        self,
        planned: RewritePlan,
        methods: Mapping[int, GroupMethod],
        workers: Workers,
        written: WrittenFiles,
        listener: Listener,
    ) -> Execution:
        """What all groups are rewritten with."""
        return Execution(
            table=self.table,
            workers=workers,
            work=GroupWork(
                context=self.context(workers),
                groups={group.number: group for group in planned.groups},
                methods=methods,
                metrics={},
                may_reencode=self.options.stitch != "always",
                storage=self.table.storage,
            ),
            metrics=MetricsInParts(planned.groups, methods, partial(self.metrics, methods=methods)),
            shuffle_partitions_per_file=self.strategy.shuffle_partitions_per_file,
            concurrency=self.options.max_concurrent_file_group_rewrites,
            written=written,
            listener=listener,
        )

    def removals(self, planned: RewritePlan, methods: Mapping[int, GroupMethod]) -> list[ManifestEntry] | None:
        """The delete files that the commits take out of the table as it is, as `foreseen_removals` says.

        Raises:
            SafetyError: the plan that was given names one that is not among them.
        """
        found, given = foreseen_removals(self.table, planned, self.options, methods), self._request.given
        return found if found is None or given is None else held_removals(given, found, self.table.metadata)

    def only_dangling(self, planned: RewritePlan, methods: Mapping[int, GroupMethod]) -> frozenset[Digest] | None:
        """Which of the delete files that reach nothing may go; `None` for all. Raises as `removals`."""
        found = None if self._request.given is None else self.removals(planned, methods)
        return None if found is None else frozenset(map(entry_digest, found))

    def commits(
        self, planned: RewritePlan, written: WrittenFiles, only_dangling: frozenset[Digest] | None, listener: Listener
    ) -> Commits:
        """What all commits are made with."""
        return Commits(
            table=self.table,
            run_id=self.run_id,
            plan=planned,
            options=self.options,
            reader=SparkManifestReader(self.spark, self.table.storage),
            store=partial(store_removed_files, self.table, self.spark),
            listener=listener,
            runtime=self.runtime,
            summary=order_summary(self.strategy),
            written=written,
            only_dangling=only_dangling,
        )

    def overlap_after(self, listener: Listener) -> float | None:
        """How many files a look-up by key meets now; `None` where nothing was ordered, or where that cannot be found out."""
        if self.strategy.ordering is None:
            return None

        def measured() -> float | None:
            after = self.table.catalog.load(self.table.identifier)
            scan = open_scan(after, where=self.where, ref=self.branch)
            return measured_overlap(scan, self.spark, self.strategy)

        return or_warned("how far the files overlap now", measured, None, listener)

    def estimated(self, planned: RewritePlan, methods: Mapping[int, GroupMethod], workers: Workers) -> Estimate:
        """What it will take."""
        works = [work for group in planned.groups for work in _works(group, methods[group.number])]
        return estimate(
            works,
            slots=workers.slots,
            groups_count=len(planned.groups),
            files_count=planned.rewritten_data_files_count + sum(group.delete_files_count for group in planned.groups),
            new_files_count=sum(methods[group.number].files_count for group in planned.groups),
            delete_bytes=sum(group.delete_bytes for group in planned.groups),
            pace=1.0 if self.table.run is None else self.table.run.cpu_pace,
        )


def _works(group: FileGroup, method: GroupMethod) -> Sequence[Work]:
    left_bytes = group.bytes - method.stitched_bytes
    other = method.method if method.method is not RewriteMethod.STITCH else RewriteMethod.REENCODE
    works = []
    if method.stitched:
        works.append(Work(RewriteMethod.STITCH, method.stitched_bytes, len(method.stitched)))
    if left_bytes:
        works.append(Work(other, left_bytes, max(1, method.files_count - len(method.stitched))))
    return works


def chosen_sizes(metadata: TableMetadata, options: RewriteDataFilesOptions) -> FileSizes:
    """The sizes of files that the options ask for.

    Raises:
        NotFoundError: the table has no such partition spec.
        OptionError: a size is wrong.
    """
    if options.output_spec_id is not None and options.output_spec_id not in metadata.specs_by_id:
        raise NotFoundError(
            f"the table has no partition spec {options.output_spec_id} (option output-spec-id); it has "
            f"{', '.join(map(str, sorted(metadata.specs_by_id)))}"
        )
    return file_sizes(options, write_options(metadata.properties).target_file_size_bytes)
