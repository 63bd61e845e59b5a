"""Compaction and rewrites of delete files and manifests, broken on purpose: see `mutants`."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from msgspec.structs import replace

from icekeep.commit import dangling, live_files
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes import deletes
from icekeep.commit.changes import rewrites as rewrite_files
from icekeep.commit.changes import rewrites as rewrite_manifests
from icekeep.commit.changes.deletes import ConvertDeletes, RewriteDeletes
from icekeep.commit.changes.rewrites import AppliedDeletes, RewriteFiles, RewriteManifests
from icekeep.commit.manifests import manifest_key
from icekeep.commit.retry import commit
from icekeep.maintenance.rewrite import run as start_tag
from icekeep.spec import reach as applicability
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.reach import is_global, partition_key
from simulation import compaction_operations
from simulation.replacing import replaced

_dangling, _is_dangling = rewrite_files.dangling, dangling.is_dangling


def moves_rows_past_deletes() -> AbstractContextManager[Any]:
    """Moves rows to another spec whatever equality deletes came meanwhile for where they are put."""
    return replaced(AppliedDeletes, "_problem_of_moving", lambda self, reader: None)


def takes_moved_rows_for_reached() -> AbstractContextManager[Any]:
    """Moves rows to another spec as if newer equality deletes of their old one still reached them."""
    checked = AppliedDeletes.checked
    return replaced(
        AppliedDeletes, "checked", lambda self, *rest: checked(replace(self, moved_spec_ids=frozenset()), *rest)
    )


def takes_global_deletes_for_a_partitions() -> AbstractContextManager[Any]:
    """Looks for the rows of global equality deletes in their own spec alone."""

    def is_dangling(delete: Any, least: Any, min_of_table: int, specs: Any) -> bool:
        if is_global(delete.data_file, specs):
            number = least.partitions.get(partition_key(delete.data_file))
            return number is None or not applicability.is_newer(delete, number)
        return _is_dangling(delete, least, min_of_table, specs)

    return replaced(dangling, "is_dangling", is_dangling)


def takes_equal_numbers_for_too_old() -> AbstractContextManager[Any]:
    """Takes position deletes of the same commit as their data file for dangling."""

    def is_dangling(delete: Any, least: Any, min_of_table: int, specs: Any) -> bool:
        if delete.data_file.content is FileContent.POSITION_DELETES:
            path = applicability.only_data_file(delete.data_file)
            number = least.paths.get(applicability.path_digest(path or ""))
            return number is None or delete.sequence_number <= number + 1
        return _is_dangling(delete, least, min_of_table, specs)

    return replaced(dangling, "is_dangling", is_dangling)


def believes_bounds() -> AbstractContextManager[Any]:
    """Drops position deletes whose equal bounds are the path of no live data file, and does not look at their rows."""

    def run(self: Any, manifest: Any, reader: Any) -> frozenset[bytes]:
        live = (entry for entry in reader.entries(manifest, self.base) if entry.is_live)
        return frozenset(applicability.own_path_digest(e.data_file) for e in live if self.is_asked(e))

    return replaced(live_files.ProvenPaths, "run", run)


def leaves_deletes_that_name_no_file() -> AbstractContextManager[Any]:
    """Leaves delete files of a replaced data file where only their bounds say that they are of it."""
    return replaced(live_files.ProvenPaths, "run", lambda self, manifest, reader: frozenset[bytes]())


def forgets_what_it_adds() -> AbstractContextManager[Any]:
    """Looks for what is dangling without the files that the compaction adds."""

    def without(deletes: Any, data: Any, added: Any, base: Any, attempt: Any, **given: Any) -> Any:
        return _dangling(deletes, data, (), base, attempt)

    return replaced(rewrite_files, "dangling", without)


def forgets_what_it_removes() -> AbstractContextManager[Any]:
    """Looks for what is dangling as if the files that go were still there."""
    find = RewriteFiles._dangling
    return replaced(
        RewriteFiles,
        "_dangling",
        lambda self, manifests, kept, *rest: find(self, manifests, replace(kept, manifests=manifests.data), *rest),
    )


def finds_dangling_deletes_once() -> AbstractContextManager[Any]:
    """Decides what is dangling on the base of the first attempt."""
    find, found = RewriteFiles._dangling, {}

    def first(self: RewriteFiles, manifests: Any, kept: Any, base: Any, attempt: Any) -> Any:
        if attempt.snapshot_id not in found:
            found[attempt.snapshot_id] = find(self, manifests, kept, base, attempt)
        return found[attempt.snapshot_id]

    return replaced(RewriteFiles, "_dangling", first)


def holds_nothing() -> AbstractContextManager[Any]:
    """Rewrites without a tag on the snapshot that it reads."""

    @contextmanager
    def pin_snapshot(
        table: Any, snapshot_id: int, run_id: str, runtime: Any, listener: Any, heartbeat: Any = None
    ) -> Iterator[str]:
        yield run_id

    return replaced(compaction_operations, "pin_snapshot", pin_snapshot)


def leaves_its_tag() -> AbstractContextManager[Any]:
    """Drops no tag at the end of a run."""
    return replaced(start_tag, "_drop", lambda *arguments: None)


def drops_tags_of_living_runs() -> AbstractContextManager[Any]:
    """Takes every run but its own for dead."""

    def drop_all(table: Any, runtime: Any, listener: Any) -> None:
        for name, ref in table.metadata.refs.items():
            if name.startswith(start_tag.TAG_PREFIX):
                start_tag._drop(table, name, ref.snapshot_id, runtime, listener)

    return replaced(start_tag, "_drop_left_over", drop_all)


def holds_for_no_time() -> AbstractContextManager[Any]:
    """Gives its tag an age that has passed already, since it is counted from when the snapshot was made."""

    def create(table: Any, name: str, snapshot_id: int, runtime: Any, listener: Any) -> None:
        ref = start_tag.SnapshotRef(snapshot_id=snapshot_id, type="tag", max_ref_age_ms=1)
        commit(table, start_tag._Pin(name, ref), runtime=runtime)

    return replaced(start_tag, "_create", create)


def converts_what_it_looked_through() -> AbstractContextManager[Any]:
    """Removes equality deletes though they reach data files that came since, or its own are gone."""
    return replaced(ConvertDeletes, "_check_reached", lambda self, manifests, base, attempt: None)


def converts_past_new_positions() -> AbstractContextManager[Any]:
    """Adds vectors whatever vectors others have added meanwhile."""
    return replaced(ConvertDeletes, "_check_position_deletes", lambda self, manifests, base, attempt: None)


def numbers_merged_deletes_anew() -> AbstractContextManager[Any]:
    """Gives merged delete files the number of the commit, as if they were new."""
    add_numbered = deletes.add_numbered

    def numbered_anew(files: Any, attempt: Any, *rest: Any, **given: Any) -> Any:
        late = ((file, attempt.base.next_sequence_number) for file, _ in files)
        return add_numbered(late, attempt, *rest, **given)

    return replaced(deletes, "add_numbered", numbered_anew)


def upgrades_unseen() -> AbstractContextManager[Any]:
    """Writes position delete files for a table that takes vectors by now."""
    return replaced(RewriteDeletes, "_check_base", lambda self, base: None)


def lists_manifests_that_are_gone() -> AbstractContextManager[Any]:
    """Lists new manifests as they are also where those that they replace are no longer in the table."""

    def lenient(self: RewriteManifests, here: Any) -> Any:
        return [m for m in self.replaced if manifest_key(m) in here]

    stack = ExitStack()
    stack.enter_context(replaced(rewrite_manifests, "_check_counts", lambda *arguments: None))
    stack.enter_context(replaced(RewriteManifests, "_replaced", lenient))
    return stack


def leaves_what_it_had_no_use_for() -> AbstractContextManager[Any]:
    """Leaves new manifests in storage that it did not list in the end."""
    return replaced(Attempt, "leave_out", lambda self, manifests: None)


def finds_what_manifests_leave_once() -> AbstractContextManager[Any]:
    """Leaves out in later attempts the delete files that reached nothing in the first one's base."""
    found: dict[Any, Any] = {}

    def dangling(deletes: Any, data: Any, added: Any, base: Any, attempt: Any, **given: Any) -> Any:
        if attempt.snapshot_id not in found:
            found[attempt.snapshot_id] = _dangling(deletes, data, added, base, attempt, **given)
        return found[attempt.snapshot_id]

    return replaced(rewrite_manifests, "dangling", dangling)
