"""Finished groups -> commits: what lands, what is removed, what is counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.catalog.base import Unknown
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import (
    ConflictError,
    IcekeepBug,
    JobFailedError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    says_why,
)
from icekeep.events import CommitRetried, Warned
from icekeep.formats.rewrite.task import RewriteOutcome
from icekeep.maintenance.compact import commit as commits_module
from icekeep.maintenance.compact.commit import CompactionCommits, commit_groups, read_files
from icekeep.maintenance.compact.execute import RewrittenGroup
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.plan import (
    FileGroup,
    GroupDelete,
    GroupFile,
    GroupFiles,
    RewritePlan,
    pack_group_files,
)
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.rewrite.alive import LOOK_AFTER_MS
from icekeep.maintenance.rewrite.commit import FailedGroup
from icekeep.maintenance.rewrite.run import RewriteRun
from icekeep.planning.spark.failures import known_error
from icekeep.spec.collections import PositionSet
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.reach import AppliedDelete
from icekeep.spec.updates import AddPartitionSpec, RemoveSnapshots
from kit.changes import Recorder, store_file_set, thrown
from kit.deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.memory_catalog import COMMITS, CONFLICTS, IS_UNKNOWN, LANDS_BUT_SAYS_CONFLICT, MemoryCatalog, after, fails
from kit.tables import (
    BY_KIND,
    EVENTS,
    add,
    data_file,
    entries_of,
    live,
    manifests_of,
    memory_table,
    orphans,
    raw_entries,
    set_ref,
    stored,
    swap,
)


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    """`a` to `f`, two in a commit."""
    table = memory_table(catalog, commit__retry__num_retries="1")
    for names in ("ab", "cd", "ef"):
        table = add(table, *names)
    return table


def outcome(*files):
    return RewriteOutcome(files=files, read_count=0, live_count=0, stitched_count=len(files))


class Run:
    """One run on a table as it is now, its groups rewritten but not committed."""

    def __init__(self, table, *groups, added=None, output_spec_id=None, branch="main", **options):
        self.table, self.listener = table, Recorder()
        self.takes_ms = 0
        self.options = parse_options(
            RewriteDataFilesOptions, {name.replace("__", ".").replace("_", "-"): str(v) for name, v in options.items()}
        )
        self.groups = tuple(_group(table, n, names, output_spec_id, branch) for n, names in enumerate(groups))
        self.stored: list[str] = []
        self.finished = [
            self.rewritten(group, f"new-{number}" if added is None else added[number])
            for number, group in enumerate(self.groups)
        ]
        head = table.metadata.head(branch)
        self.plan = RewritePlan(
            branch=branch,
            snapshot_id=head.snapshot_id,
            sequence_number=head.sequence_number,
            schema_id=0,
            target_file_size_bytes=100,
            candidate_files_count=0,
            rewritten_data_files_count=0,
            rewritten_bytes_count=0,
            expected_files_count=0,
            groups=self.groups,
        )

    def rewritten(self, group, name, records=5):
        if name is None:
            return RewrittenGroup(group=group, outcomes=(outcome(),))
        file = data_file(name, records, spec_id=group.output_spec_id)
        (first, *_) = (f for f in entries_of(self.table) if f.data_file.spec_id == group.spec_id)
        if not group.is_moved:
            file = replace(file, partition=first.data_file.partition)
        with self.table.storage.write(file.file_path) as stream:
            stream.write(b"PAR1")
        return RewrittenGroup(group=group, outcomes=(outcome(file),))

    def failed(self, number, error=None):
        self.table.storage.delete_many([f.file_path for f in self.finished[number].added])
        error = error or JobFailedError(f"group {number} is broken")
        self.finished[number] = FailedGroup(self.groups[number], error)

    def commit(self):
        committed = self.commit_finished(iter(self.finished))
        self.deferred, self.conflict = committed.deferred, committed.conflict
        return committed.result

    def commit_finished(self, finished):
        commits = self.commits()
        if self.takes_ms:
            self.table.catalog.runtime.pass_ms(self.takes_ms)
        return commit_groups(finished, commits)

    def commits(self):
        return CompactionCommits(
            run=RewriteRun(self.table, "compact", "run", self.listener),
            plan=self.plan,
            options=self.options,
            reader=ManifestReader(self.table.storage),
            store=self.store,
        )

    def store(self, groups, directory):
        self.stored.append(directory)
        types = self.table.metadata.partition_types
        files = [file for g in groups for file in read_files(commits_module.group_files(g, self.table.storage), types)]
        return store_file_set(files, self.table.storage, directory)

    @property
    def warnings(self):
        return [event.message for event in self.listener.events if isinstance(event, Warned)]


def _group(table, number, names, output_spec_id, branch):
    """The group of some files, with the deletes that reach them, as planning reads both."""
    metadata, reader = table.metadata, ManifestReader(table.storage)
    live = [
        (e, m.manifest_path)
        for m in reader.manifests(metadata.head(branch))
        for e in reader.entries(m, metadata)
        if e.is_live
    ]
    listed = {e.data_file.file_path: (e, path) for e, path in live}
    entries = [listed[path_of(name)][0] for name in names]
    deletes = [e for e, _ in live if e.data_file.content is not FileContent.DATA]
    reaching = reaching_deletes(entries, deletes, metadata.specs_by_id)
    used = [d for d in deletes if any(d in some for some in reaching.values())]
    spec_id = entries[0].data_file.spec_id
    files = GroupFiles(
        files=tuple(_file(e, listed, reaching, used, metadata) for e in entries),
        deletes=tuple(_delete(d, metadata) for d in used),
    )
    return FileGroup(
        number=number,
        partition="",
        spec_id=spec_id,
        output_spec_id=spec_id if output_spec_id is None else output_spec_id,
        files_count=len(entries),
        bytes=sum(e.data_file.file_size_in_bytes for e in entries),
        record_count=sum(e.data_file.record_count for e in entries),
        expected_files_count=1,
        packed=pack_group_files(files),
    )


def _file(entry, listed, reaching, used, metadata):
    file = entry.data_file
    return GroupFile(
        file_path=file.file_path,
        file_format=file.file_format,
        spec_id=file.spec_id,
        partition=PartitionCodec(metadata.partition_type(file.spec_id)).encode(file.partition),
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        manifest_path=listed[file.file_path][1],
        first_row_id=file.first_row_id,
        deletes=PositionSet(used.index(d) for d in reaching[file.file_path]),
    )


def _delete(entry, metadata):
    file = entry.data_file
    return GroupDelete(
        content=file.content.value,
        file_path=file.file_path,
        file_format=file.file_format,
        spec_id=file.spec_id,
        partition=PartitionCodec(metadata.partition_type(file.spec_id)).encode(file.partition),
        sequence_number=entry.sequence_number,
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        equality_ids=file.equality_ids,
        referenced_data_file=file.referenced_data_file,
        content_offset=file.content_offset,
        content_size_in_bytes=file.content_size_in_bytes,
    )


def new_files(catalog):
    return {at.rsplit("/", 1)[-1] for at in stored(catalog) if "/data/new-" in at}


def test_all_groups_are_replaced_in_one_commit(table, catalog):
    run = Run(table, "ab", "cd")
    before = len(catalog.swaps)
    result = run.commit()
    assert live(catalog.load(EVENTS)) == {"new-0": 1, "new-1": 1, "e": 1, "f": 1}
    assert len(catalog.swaps) - before == 1
    counts = (result.status, result.rewritten_data_files_count, result.added_data_files_count, result.commits_count)
    assert counts == ("done", 4, 2, 1)
    assert (result.rewritten_bytes_count, result.added_bytes_count) == (400, 100)
    assert (result.deleted_records_count, result.stitched_data_files_count) == (30, 2)
    assert (result.failed_data_files_count, result.failed_commits_count) == (0, 0)


@pytest.mark.parametrize(("keeps", "number"), [(True, 3), (False, 4)])
def test_starting_sequence_number_is_optional(table, catalog, keeps, number):
    """New files get the sequence number of the starting snapshot only where the option asks for it."""
    Run(table, "ab", use_starting_sequence_number=keeps).commit()
    assert entries_of(catalog.load(EVENTS), "new-0")[0].sequence_number == number


def test_each_removed_file_carries_its_applied_deletes(table, catalog):
    deleted = add_deletes(
        table, position_deletes("p", "a"), equality_deletes("e1"), equality_deletes("e2"), named=("a",)
    )
    run = Run(deleted, "ab", "c")
    found = [
        file
        for group in run.groups
        for file in read_files(commits_module.group_files(group, table.storage), table.metadata.partition_types)
    ]
    e1, e2 = (AppliedDelete(path_of(name), None, 4, FileContent.EQUALITY_DELETES) for name in ("e1", "e2"))
    p = AppliedDelete(path_of("p"), None, 4)
    assert {f.entry.data_file.file_path: f.applied_deletes for f in found} == {
        path_of("a"): {p, e1, e2},
        path_of("b"): {e1, e2},
        path_of("c"): {e1, e2},
    }
    assert found[1].applied_deletes is not found[0].applied_deletes
    run.commit()
    assert "new-1" in live(catalog.load(EVENTS))


def test_a_failed_group_fails_the_run_and_nothing_of_it_is_left(table, catalog):
    run = Run(table, "ab", "cd", "ef")
    run.failed(1)
    with pytest.raises(JobFailedError, match="group 1 is broken; its files are as they were"):
        run.commit()
    assert live(catalog.load(EVENTS)) == dict.fromkeys("abcdef", 1)
    # What comes after it is discarded by whoever executes the groups.
    assert new_files(catalog) == {"new-2"}


def test_what_is_not_supported_fails_the_run_as_that(table, catalog):
    """Nothing is changed, and the exit status says so: a file without field ids, a struct without fields."""
    for options in ({}, PARTIAL):
        run = Run(table, "ab", "cd", "ef", **options)
        for number in range(3):
            run.failed(number, UnsupportedError("column 'a' has no field id"))
        with pytest.raises(UnsupportedError, match="column 'a' has no field id"):
            run.commit()
        assert live(catalog.load(EVENTS)) == dict.fromkeys("abcdef", 1)


def test_an_unknown_outcome_keeps_the_new_files(table, catalog):
    run = Run(table, "ab")
    catalog.follow(IS_UNKNOWN)
    with pytest.raises(OutcomeUnknownError):
        run.commit()
    assert new_files(catalog) == {"new-0"}


class Stopping(Recorder):
    """Ends the job where it is told that a commit is tried again."""

    def on(self, event):
        super().on(event)
        if isinstance(event, CommitRetried):
            raise SystemExit(130)


@pytest.mark.parametrize("options", [{}, {"partial_progress__enabled": True, "partial_progress__max_commits": 2}])
def test_exit_between_attempts_removes_new_files(table, catalog, options):
    before, run = stored(catalog), Run(table, "ab", "cd", **options)
    run.listener = Stopping()
    catalog.follow(CONFLICTS)
    with pytest.raises(SystemExit):
        run.commit()
    # Of a plan in several commits the group that was not begun is discarded by whoever executes the groups.
    assert new_files(catalog) == ({"new-1"} if options else set())
    assert {at for at in stored(catalog) - before if "/data/" not in at} == set()


@pytest.mark.parametrize("lands", [True, False])
def test_interrupt_after_commit_keeps_landed_files(table, catalog, lands, monkeypatch):
    monkeypatch.setattr(commits_module, "HELD_MAX_COUNT", 1)
    run = Run(table, "ab")
    delete_many, swaps = table.storage.delete_many, len(catalog.swaps)

    def ended(locations):
        if len(catalog.swaps) > swaps and run.stored and any(run.stored[0] in one for one in locations):
            raise SystemExit(143)
        return delete_many(locations)

    monkeypatch.setattr(table.storage, "delete_many", ended)
    catalog.follow(COMMITS if lands else IS_UNKNOWN)
    with pytest.raises(SystemExit):
        run.commit()
    assert new_files(catalog) == {"new-0"}
    assert live(catalog.load(EVENTS)) == (
        {"new-0": 1, **dict.fromkeys("cdef", 1)} if lands else dict.fromkeys("abcdef", 1)
    )


def test_groups_whose_conflict_cannot_be_found_out_are_removed(table, catalog, monkeypatch):
    run = Run(table, "ab")
    monkeypatch.setattr(RewriteRun, "send", thrown(ConflictError("others changed it")))
    monkeypatch.setattr(commits_module._Committer, "conflicting", thrown(UnavailableError("away")))
    with pytest.raises(UnavailableError):
        run.commit()
    assert new_files(catalog) == set()


def test_groups_of_which_no_row_is_left_are_removed(table, catalog):
    deleted = add_deletes(table, equality_deletes("e"))
    result = Run(deleted, "ab", added=[None]).commit()
    assert live(catalog.load(EVENTS)) == {**dict.fromkeys("cdef", 1), "e": 2}
    assert (result.added_data_files_count, result.deleted_records_count, result.rewritten_data_files_count) == (
        0,
        20,
        2,
    )


def test_vectors_of_replaced_files_go_with_them_and_are_counted(catalog):
    table = add(memory_table(catalog, format_version=3), "a", "b", "c")
    table = add_deletes(table, *(deletion_vector("v", name, 4 + n) for n, name in enumerate("abc")))
    assert Run(table, "ab").commit().removed_delete_files_count == 2
    assert live(catalog.load(EVENTS)) == {"new-0": 1, "c": 1, "v": 1}


def test_removed_deletes_are_counted_if_snapshot_expired(catalog, monkeypatch):
    """The count of removed delete files survives a lost answer and the expiry of the snapshot."""
    table = add(memory_table(catalog, format_version=3), "a", "b")
    table = add_deletes(table, deletion_vector("v", "a", 4), deletion_vector("v", "b", 44))
    run, swap_once = Run(table, "ab"), catalog.swap

    def swap_and_lose_the_answer(*arguments):
        monkeypatch.setattr(catalog, "swap", swap_once)
        made = swap_once(*arguments).table
        swap(add(made, "later"), RemoveSnapshots((made.metadata.current_snapshot_id,)))
        return Unknown("the connection was lost", made.metadata_location)

    monkeypatch.setattr(catalog, "swap", swap_and_lose_the_answer)
    result = run.commit()
    assert (result.removed_delete_files_count, result.commits_count) == (2, 1)
    assert len(catalog.load(EVENTS).metadata.snapshots) == 3


@pytest.mark.parametrize(("asked", "removed_count"), [(True, 1), (False, 0)])
def test_dangling_deletes_go_in_the_same_commit_if_asked(catalog, asked, removed_count):
    table = add(memory_table(catalog, spec=BY_KIND), data_file("y", partition=("y",)))
    table = add(table, data_file("x", partition=("x",)))
    table = add_deletes(table, equality_deletes("e", partition=("x",)))
    run = Run(table, "x", remove_dangling_deletes=asked, added=[None])
    before = len(catalog.swaps)
    assert run.commit().removed_delete_files_count == removed_count
    assert len(catalog.swaps) - before == 1
    assert live(catalog.load(EVENTS)) == ({"y": 1} if asked else {"y": 1, "e": 1})


def test_files_that_move_to_another_spec_are_held_to_its_rule(catalog):
    table = swap(memory_table(catalog, spec=BY_KIND), AddPartitionSpec(replace(BY_KIND, spec_id=1, fields=())))
    table = add(table, *(data_file(name, partition=("x",)) for name in "abc"))
    moving, staying = Run(table, "a", output_spec_id=1), Run(table, "b", added=["new-9"])
    add_deletes(table, equality_deletes("e", partition=("z",)))
    assert moving.commit().commits_count == 0
    assert moving.deferred == moving.groups
    assert "came while rows were moved" in moving.conflict.message
    assert staying.commit().commits_count == 1
    table = catalog.load(EVENTS)
    assert Run(table, "c", output_spec_id=1, added=["new-8"]).commit().commits_count == 1
    assert entries_of(catalog.load(EVENTS), "new-8")[0].data_file.spec_id == 1


def test_groups_are_replaced_on_the_branch_that_was_planned(table, catalog):
    table = set_ref(table, "side", table.metadata.current_snapshot_id, "branch")
    Run(table, "ab", branch="side").commit()
    done = catalog.load(EVENTS)
    assert live(done) == dict.fromkeys("abcdef", 1)
    assert live(done, "side") == {"new-0": 1, **dict.fromkeys("cdef", 1)}


PARTIAL = {"partial_progress__enabled": True}


@pytest.mark.parametrize(("max_commits", "commits_count"), [(1, 1), (2, 2), (3, 3), (10, 3)])
def test_partial_progress_commits_groups_in_batches(table, catalog, max_commits, commits_count):
    run = Run(table, "ab", "cd", "ef", **PARTIAL, partial_progress__max_commits=max_commits)
    result = run.commit()
    assert (result.status, result.commits_count, result.rewritten_data_files_count) == ("done", commits_count, 6)
    assert live(catalog.load(EVENTS)) == {"new-0": 1, "new-1": 1, "new-2": 1}
    assert [s.operation for s in catalog.load(EVENTS).metadata.snapshots][-commits_count:] == [
        "replace"
    ] * commits_count


def test_commits_are_counted_not_subtracted(table, catalog):
    """apache/iceberg #16971: fewer commits than allowed are no failure."""
    run = Run(table, "ab", **PARTIAL, partial_progress__max_commits=10, partial_progress__max_failed_commits=0)
    result = run.commit()
    assert (result.status, result.commits_count, result.failed_commits_count) == ("done", 1, 0)
    assert run.warnings == []


def test_a_refused_batch_is_discarded_and_the_others_land(table, catalog):
    run = Run(table, "ab", "cd", "ef", **PARTIAL)
    add_deletes(table, position_deletes("p", "c"), named=("c",))
    result = run.commit()
    assert live(catalog.load(EVENTS)) == {"new-0": 1, "c": 1, "d": 1, "new-2": 1, "p": 1}
    assert (result.status, result.commits_count, result.failed_commits_count) == ("partial", 2, 1)
    assert (result.rewritten_data_files_count, result.failed_data_files_count) == (4, 2)
    assert new_files(catalog) == {"new-0", "new-2"}
    assert len(run.warnings) == 1


def test_a_failed_group_leaves_its_files_and_the_others_land(table, catalog):
    run = Run(table, "ab", "cd", "ef", **PARTIAL, partial_progress__max_commits=2)
    run.failed(0)
    result = run.commit()
    assert live(catalog.load(EVENTS)) == {"a": 1, "b": 1, "new-1": 1, "new-2": 1}
    assert (result.status, result.commits_count, result.failed_commits_count) == ("partial", 1, 0)
    assert (result.failed_data_files_count, result.added_data_files_count) == (2, 2)
    assert run.warnings == ["2 data files are left as they are: group 0 is broken"]


def test_too_many_failed_commits_make_the_run_partial(table, catalog):
    """No error speaks of a table that is as it was."""
    run = Run(table, "ab", "cd", "ef", **PARTIAL, partial_progress__max_failed_commits=0)
    add_deletes(table, position_deletes("p", "a"), named=("a",))
    result = run.commit()
    assert (result.status, result.commits_count, result.failed_commits_count) == ("partial", 2, 1)
    assert result.failed_data_files_count == 2
    assert "1 commit failed (2 landed), 0 are allowed; 2 data files are as they were" in run.warnings[-1]
    assert live(catalog.load(EVENTS)) == {"a": 1, "b": 1, "new-1": 1, "new-2": 1, "p": 1}


def test_as_many_may_fail_as_there_may_be_commits_but_not_all(table, catalog):
    run = Run(table, "ab", "cd", "ef", **PARTIAL, partial_progress__max_commits=3)
    catalog.follow(*[CONFLICTS] * 4)
    assert run.commit().failed_commits_count == 2
    rest = Run(catalog.load(EVENTS), "ab", **PARTIAL)
    catalog.follow(*[CONFLICTS] * 2)
    with pytest.raises(JobFailedError, match=r"1 commit failed \(0 landed\)"):
        rest.commit()


def test_nothing_lands_where_all_groups_fail(table, catalog):
    run = Run(table, "ab", "cd", **PARTIAL)
    run.failed(0)
    run.failed(1)
    with pytest.raises(
        JobFailedError, match=r"no file group .*; 4 data files are as they were; the first failure: \w+"
    ) as raised:
        run.commit()
    assert "group 0 is broken" in str(raised.value.__cause__)


def test_of_several_failures_one_of_ours_is_the_cause(table):
    """A JVM or a store that is gone explains the others, and not rows that are wrong."""
    disk = known_error(OSError(28, "No space left on device"), "a task")
    failures = [UnavailableError("away"), IcekeepBug("rows are wrong"), disk]
    run = Run(table, "ab", "cd", "ef", **PARTIAL)
    run.finished = [FailedGroup(group, error) for group, error in zip(run.groups, failures, strict=True)]
    with pytest.raises(JobFailedError, match=r"the first failure: away; most severe: rows are wrong$") as raised:
        run.commit()
    assert raised.value.__cause__ is failures[1]
    assert says_why(raised.value)


def test_kept_evidence_is_not_reported_as_removed(table):
    run = Run(table, "ab")
    wrong = IcekeepBug("the new files are kept as evidence: 's3://b/0'", kept_files=["s3://b/0"])
    run.finished[0] = FailedGroup(run.groups[0], wrong)
    with pytest.raises(JobFailedError, match=r"kept as evidence: 's3://b/0'$"):
        run.commit()


def test_landed_commit_reported_as_conflict_counts_as_landed(table, catalog):
    run = Run(table, "ab", "cd", **PARTIAL)
    catalog.follow(LANDS_BUT_SAYS_CONFLICT)
    result = run.commit()
    assert (result.status, result.commits_count, result.failed_commits_count) == ("done", 2, 0)
    assert new_files(catalog) == {"new-0", "new-1"}


def test_unknown_outcome_stops_partial_progress(table, catalog):
    """Files of the unknown batch are kept; later batches are left to the executor."""
    run = Run(table, "ab", "cd", "ef", **PARTIAL)
    catalog.follow(IS_UNKNOWN)
    with pytest.raises(OutcomeUnknownError):
        run.commit()
    assert "new-0" in new_files(catalog)


def test_interrupt_between_batches_discards_waiting_groups(table, catalog):
    """A finished group that waits for its commit is removed; the table stays as it was."""
    run = Run(table, "ab", "cd", "ef", **PARTIAL, partial_progress__max_commits=2)

    def until_interrupted():
        yield run.finished[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.commit_finished(until_interrupted())
    assert new_files(catalog) == {"new-1", "new-2"}
    assert live(catalog.load(EVENTS)) == dict.fromkeys("abcdef", 1)


def test_a_bug_is_not_taken_for_a_failed_commit(table, catalog):
    run = Run(table, "ab", "cd", **PARTIAL)
    run.finished[0] = run.rewritten(run.groups[0], "new-9", records=21)
    with pytest.raises(IcekeepBug, match="more rows than it removes"):
        run.commit()
    assert "new-9" not in new_files(catalog)


@pytest.mark.parametrize("records", [5, 21])
def test_error_after_a_landed_commit_makes_the_run_partial(table, catalog, records):
    """A bug of ours, and an error that is none of ours."""
    run = Run(table, "ab", "cd", "ef", **PARTIAL)
    run.finished[1] = run.rewritten(run.groups[1], "new-9", records=records)

    def broken():
        yield from run.finished[:2]
        raise ValueError("no such thing")

    committed = run.commit_finished(broken())
    result = committed.result
    landed_count = 4 if records == 5 else 2
    assert (result.status, result.commits_count) == ("partial", landed_count / 2)
    assert (result.rewritten_data_files_count, result.failed_data_files_count) == (landed_count, 6 - landed_count)
    told = "ValueError: no such thing" if records == 5 else "more rows than it removes"
    [warning] = run.warnings
    assert told in warning
    assert "the rest was not done" in warning
    assert ("new-9" in new_files(catalog)) == (records == 5)


@pytest.mark.parametrize("batches", [False, True])
def test_files_taken_by_orphan_removal_are_not_committed(table, catalog, batches):
    """Rows were lost where a run of days committed files that were there no more."""
    run = Run(table, "ab", "cd", **PARTIAL if batches else {})
    [lost] = run.finished[0].added
    run.takes_ms = LOOK_AFTER_MS
    table.storage.delete_many([lost.file_path])
    if batches:
        assert run.commit().status == "partial"
        [warning] = run.warnings
        assert "1 of 1 new files of 'db.events' are gone before their commit" in warning
        assert live(catalog.load(EVENTS)) == {"a": 1, "b": 1, "new-1": 1, "e": 1, "f": 1}
    else:
        with pytest.raises(
            SafetyError, match=r"1 of 2 new files of .* are gone before their commit, .*new-0"
        ) as raised:
            run.commit()
        assert raised.value.exit_status == 4
        assert live(catalog.load(EVENTS)) == dict.fromkeys("abcdef", 1)
        assert new_files(catalog) == set()


def test_new_files_of_a_young_run_are_not_looked_at(table, catalog):
    """A request a file, for files that nobody may take for garbage yet."""
    run = Run(table, "ab")
    run.takes_ms = LOOK_AFTER_MS - 1
    [lost] = run.finished[0].added
    table.storage.delete_many([lost.file_path])
    assert run.commit().status == "done"


def test_the_last_commit_removes_dangling_deletes(catalog):
    table = memory_table(catalog, spec=BY_KIND, commit__retry__num_retries="0")
    table = add(table, *(data_file(name, partition=("x",)) for name in "abc"))
    table = add_deletes(add(table, data_file("y", partition=("y",))), equality_deletes("e", partition=("z",)))
    # Deletes of a partition without data are there until the end.
    run = Run(table, "a", "b", "c", **PARTIAL, remove_dangling_deletes=True)
    seen = []
    catalog.follow(*[after(lambda: seen.append(live(catalog.load(EVENTS))["e"]))] * 3)
    assert run.commit().removed_delete_files_count == 1
    assert seen == [1, 1, 1]
    assert "e" not in live(catalog.load(EVENTS))


def test_dangling_deletes_go_though_the_last_group_failed(catalog):
    table = memory_table(catalog, spec=BY_KIND)
    table = add(table, *(data_file(name, partition=("x",)) for name in "ab"))
    table = add_deletes(table, equality_deletes("e", partition=("z",)))
    run = Run(table, "a", "b", **PARTIAL, remove_dangling_deletes=True)
    run.failed(1)
    result = run.commit()
    assert (result.removed_delete_files_count, result.commits_count, result.status) == (1, 2, "partial")
    # Where there are none, that is no commit.
    again = Run(catalog.load(EVENTS), ["new-0"], "b", added=["new-8", "new-9"], **PARTIAL, remove_dangling_deletes=True)
    again.failed(1)
    assert again.commit().commits_count == 1


def test_dangling_deletes_go_where_no_group_is_left_to_rewrite(catalog):
    table = add(memory_table(catalog, spec=BY_KIND), data_file("a", partition=("x",)))
    table = add_deletes(table, equality_deletes("e", partition=("z",)))
    result = Run(table, **PARTIAL, remove_dangling_deletes=True).commit()
    assert (result.removed_delete_files_count, result.commits_count, result.status) == (1, 1, "done")
    assert live(catalog.load(EVENTS)) == {"a": 1}


def test_failed_only_commit_fails_a_run_without_groups(catalog):
    table = add(memory_table(catalog, spec=BY_KIND), data_file("a", partition=("x",)))
    table = add_deletes(table, equality_deletes("e", partition=("z",)))
    catalog.follow(*[CONFLICTS] * 6)
    with pytest.raises(JobFailedError, match=r"1 commit failed \(0 landed\)"):
        Run(table, **PARTIAL, remove_dangling_deletes=True).commit()


@pytest.fixture
def few_are_held(monkeypatch):
    monkeypatch.setattr(commits_module, "HELD_MAX_COUNT", 3)


@pytest.mark.usefixtures("few_are_held")
def test_set_of_removed_files_in_storage_is_deleted(table, catalog):
    """Many removed files are written to storage as a set, which is deleted after the commit."""
    deleted = add_deletes(table, position_deletes("p", "a"), equality_deletes("e"), named=("a",))
    run = Run(deleted, "ab", "cd")
    run.commit()
    assert live(catalog.load(EVENTS)) == {"new-0": 1, "new-1": 1, "e": 2, "f": 1, "p": 1}
    assert len(run.stored) == 1
    assert not [at for at in stored(catalog) if ".icekeep" in at]
    few = Run(catalog.load(EVENTS), ["new-0"], added=["new-9"])
    few.commit()
    assert few.stored == []


@pytest.mark.usefixtures("few_are_held")
@pytest.mark.parametrize("how", [IS_UNKNOWN, fails(UsageError("denied"))])
def test_a_set_in_storage_is_gone_whatever_comes_of_the_commit(table, catalog, how):
    run = Run(table, "ab", "cd")
    catalog.follow(how)
    with pytest.raises((OutcomeUnknownError, UsageError)) as raised:
        run.commit()
    assert not [at for at in stored(catalog) if ".icekeep" in at]
    assert bool(new_files(catalog)) is (how is IS_UNKNOWN)
    if how is not IS_UNKNOWN:
        message = "denied; nothing was committed; its data files are as they were and the new files are removed"
        assert raised.value.message == message


@pytest.mark.usefixtures("few_are_held")
def test_new_files_go_where_the_set_cannot_be_written(table, catalog):
    run = Run(table, "ab", "cd")
    run.store = lambda groups, directory: (_ for _ in ()).throw(RuntimeError("a task failed"))
    with pytest.raises(RuntimeError):
        run.commit()
    assert new_files(catalog) == set()


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(["fine", "group fails", "commit is refused"]), min_size=1, max_size=6),
    st.integers(1, 7),
    st.booleans(),
)
def test_what_is_counted_is_the_difference_of_the_table(fates, max_commits, removes_dangling):
    table = memory_table()
    names = [f"{n}" for n in range(len(fates))]
    for name in names:
        table = add(table, name)
    options = {"partial_progress__max_commits": max_commits, "partial_progress__max_failed_commits": 100}
    run = Run(table, *([n] for n in names), **PARTIAL, **options, remove_dangling_deletes=removes_dangling)
    for number, fate in enumerate(fates):
        if fate == "group fails":
            run.failed(number)
        elif fate == "commit is refused":
            latest = table.catalog.load(EVENTS)
            add_deletes(latest, position_deletes(f"p{number}", names[number]), named=(names[number],))
    before = table.catalog.load(EVENTS)
    try:
        result = run.commit()
    except JobFailedError:
        assert live(table.catalog.load(EVENTS)) == live(before)
        return
    done = table.catalog.load(EVENTS)
    new = {entry.name for entry in raw_entries(done) if entry.status != 2 and entry.name.startswith("new-")}
    gone = set(names) - live(done).keys()
    assert (len(new), len(gone)) == (result.added_data_files_count, result.rewritten_data_files_count)
    assert result.failed_data_files_count == len(names) - len(gone)
    snapshots = len(done.metadata.snapshots) - len(before.metadata.snapshots)
    assert result.commits_count == snapshots
    assert (result.status == "partial") is (len(gone) < len(names))
    assert new_files(table.catalog) == new
    assert not orphans(table.catalog)
    assert manifests_of(done)
