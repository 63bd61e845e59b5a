"""A writer that updates rows all the time, in a thread, and a compaction that it gets in the way of as much as it can.

An update deletes rows by position where they are now, and appends their new versions in the same commit. It knows all rows
after each of its commits; `row_histories`, which have one writer at a time, know those of the end.
"""

from collections.abc import Sequence
from threading import Condition, Thread
from typing import Any, NamedTuple, Self

from msgspec.structs import replace

from icekeep.catalog.base import Identifier, SwapOutcome, Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError
from icekeep.events import CommitRetried, Event
from icekeep.spec.updates import AddSnapshot
from kit.beside import rewrites_files
from kit.choices import Choices
from kit.snapshot_rows import KINDS, HistoryReader, Place, Row, Rows, Seen, as_table
from kit.written_deletes import new_data_files, position_delete_files, vector_files

PATIENCE_S = 120


class Refusal(NamedTuple):
    """A commit that was refused: the snapshots that were current when it was planned, and after it was refused."""

    planned_on: int
    seen_then: int


class RowWriter:
    """Writes the files of changes of rows of one table that is partitioned by `kind`, or by nothing."""

    def __init__(self, table: Table, lot: Choices) -> None:
        self.table, self.lot = table, lot
        self.reader = HistoryReader(table)

    def look(self) -> Seen:
        """The table's rows now."""
        self.table = self.table.catalog.load(self.table.identifier)
        metadata = self.table.metadata
        assert metadata.current_snapshot is not None
        return self.reader.seen(metadata, metadata.current_snapshot)

    def delta(self, seen: Seen, deleted: Sequence[Place], added: Sequence[Row]) -> RowDelta:
        """Delete rows where they were seen, and add others."""
        start = seen.snapshot.snapshot_id
        files = new_data_files(self.table, as_table(added)) if added else ()
        change = RowDelta(added=files, starting_snapshot_id=start)
        if not deleted:
            return change
        positions = [(place.file, place.position) for place in deleted]
        named = frozenset(file.file_path for file, _ in positions)
        if self.table.metadata.format_version > 2:
            old = tuple(entry for path, entry in seen.vectors.items() if path in named)
            return replace(change, added_deletes=vector_files(self.table, positions, old), removed_deletes=old)
        scope = self.lot.choice(("file", "partition"))
        return replace(change, added_deletes=position_delete_files(self.table, positions, scope=scope), named=named)


class Updater:
    """The writer; as a context manager it runs in a thread, and what went wrong there is raised at the end.

    It is alone in changing rows, so that it knows them: `states` has the rows after each of its commits, by snapshot.
    """

    def __init__(self, table: Table, seed: int, pause_s: float) -> None:
        """Args:
        pause_s: between its updates, where nobody waits for one.
        """
        self._writer = RowWriter(table, Choices(seed))
        seen = self._writer.look()
        self.states: dict[int, Rows] = {seen.snapshot.snapshot_id: seen.rows}
        self.refusals: list[Refusal] = []
        self.landed_count = 0
        self._rows = seen.rows
        self._pause_s = pause_s
        self._condition = Condition()
        self._is_wanted = self._is_held = self._holds = self._ends = False
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, name="updates")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._ends = True
            self._is_held = False
            self._condition.notify_all()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._check()

    def another(self) -> None:
        """Wait until it lands another update."""
        with self._condition:
            wanted = self.landed_count + 1
            while self.landed_count < wanted and self._failure is None:
                self._is_wanted = True
                self._condition.notify_all()
                assert self._condition.wait(PATIENCE_S), "no update lands"
        self._check()

    def hold(self) -> None:
        """Let it plan an update and not commit it; nothing of it lands from here to `release`."""
        with self._condition:
            self._is_held = self._is_wanted = True
            self._condition.notify_all()
            assert self._condition.wait_for(lambda: self._holds or self._failure, PATIENCE_S), "no update is planned"
        self._check()

    def release(self) -> None:
        """Let it go on."""
        with self._condition:
            self._is_held = False
            self._condition.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise AssertionError("the updates ended") from self._failure

    def _run(self) -> None:
        try:
            while not self._ends:
                self._update()
                with self._condition:
                    self._condition.wait_for(lambda: self._is_wanted or self._ends, self._pause_s)
                    self._is_wanted = False
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            with self._condition:
                self._failure = error
                self._condition.notify_all()

    def _update(self) -> None:
        """One update, planned once more if it was refused."""
        for attempt in range(2):
            seen = self._writer.look()
            assert seen.rows == self._rows, "other rows than before, and nobody has changed any"
            chosen, new = self._chosen(seen)
            change = self._writer.delta(seen, chosen, new)
            self._wait_while_held()
            try:
                result = commit(self._writer.table, change)
            except ConflictError:
                self.refusals.append(Refusal(seen.snapshot.snapshot_id, self._writer.look().snapshot.snapshot_id))
                assert attempt == 0, "refused twice"
                continue
            assert result.snapshot_id is not None
            self._rows = self._rows - Rows(place.row for place in chosen) + Rows(new)
            with self._condition:
                self.states[result.snapshot_id] = self._rows
                self.landed_count += 1
                self._condition.notify_all()
            return

    def _wait_while_held(self) -> None:
        with self._condition:
            self._holds = self._is_held
            self._condition.notify_all()
            self._condition.wait_for(lambda: not self._is_held)
            self._holds = False

    def _chosen(self, seen: Seen) -> tuple[list[Place], list[Row]]:
        """Rows to update, of old files and new ones, and what becomes of them: some move to another kind, some go."""
        lot = self._writer.lot
        chosen = lot.sample(seen.places, 12)
        new: list[Row] = []
        for place in chosen[1:]:
            id_, kind, number, _ = place.row
            new.append((id_, lot.choice((kind, kind, lot.choice(KINDS))), number + 1, lot.choice((None, "ä", "later"))))
        return chosen, new


class Beside:
    """A catalog and a listener for one compaction: updates land whenever files were rewritten, and before each swap of its
    snapshot but the last that it may try; before that one an update is planned, and committed after it.
    """

    def __init__(self, table: Table, updater: Updater, num_retries: int) -> None:
        self._catalog, self._updater, self._lost = table.catalog, updater, num_retries
        self.table = replace(table, catalog=self)
        self.swaps_count = self.retries_count = 0
        self.landed_before = updater.landed_count
        self.landed_meanwhile = 0

    def on(self, event: Event) -> None:
        if rewrites_files(event):
            self._updater.another()
        if isinstance(event, CommitRetried) and self.retries_count < self.swaps_count:
            self.retries_count += 1
            if self.retries_count == self._lost:
                self._updater.hold()

    def load(self, identifier: Identifier | str) -> Table:
        return replace(self._catalog.load(identifier), catalog=self)

    def swap(self, table: Table, requirements: Any, updates: Any) -> SwapOutcome:
        if not any(isinstance(update, AddSnapshot) for update in updates):
            return self._catalog.swap(table, requirements, updates)
        self.swaps_count += 1
        if self.swaps_count <= self._lost:
            self._updater.another()
        self.landed_meanwhile = self._updater.landed_count - self.landed_before
        try:
            return self._catalog.swap(table, requirements, updates)
        finally:
            if self.swaps_count > self._lost:
                self._updater.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)
