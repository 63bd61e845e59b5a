"""`why`: the life of one file of a table, put together. Nothing is changed.

by name, or by the entries of manifests -> who reads it -> until when; else plans of runs -> the trash; else what the store has
"""

from typing import Any

import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.errors import PropertyError, SafetyError, UnsupportedError
from icekeep.events import SILENT
from icekeep.maintenance.deletion.last_look import is_gc_enabled
from icekeep.maintenance.deletion.plans import restore_command
from icekeep.maintenance.deletion.reachable import Seen
from icekeep.maintenance.deletion.territory import territory
from icekeep.maintenance.file_life.by_name import ByName, named_locations, told_by_name
from icekeep.maintenance.file_life.content import described, kind_of
from icekeep.maintenance.file_life.lineage import Lineage, events, reading_refs
from icekeep.maintenance.file_life.plans import TRASH, Named, PlansNaming, plans_naming, told_of
from icekeep.maintenance.file_life.result import State, WhyResult
from icekeep.maintenance.file_life.retention import Kept, kept_until
from icekeep.maintenance.file_life.search import Entries, Manifests, find_entries, read_manifests, snapshots_of
from icekeep.maintenance.file_life.target import Target, same_file
from icekeep.maintenance.file_life.unnamed import judged, listed_with_end
from icekeep.maintenance.file_life.words import (
    as_far_as_read,
    fate_of_read,
    fate_of_unread,
    in_plan,
    no_trace,
    unlooked,
)
from icekeep.maintenance.orphans.reachable import reached_by
from icekeep.planning.spark.jobs import spark_run
from icekeep.planning.spark.session import SparkSource, check_source, refuse_encrypted
from icekeep.spec.filters.expressions import Expression
from icekeep.spec.manifests.structs import Status
from icekeep.storage.base import FileInfo
from icekeep.storage.locations import is_under

__all__ = ["WhyResult", "why"]

_UNNAMED = "file"


def why(
    table: Table,
    path: str,
    spark: SparkSource = None,
    *,
    where: str | Expression | None = None,
    trust_manifest_list: bool = False,
) -> WhyResult:
    """Explain one file: who added it and who removed it, what refers to it, which deletes reach it, when it is deleted or why it
    is still there.

    Args:
        path: the location of a data file, delete file, manifest, manifest list, metadata file or statistics file, in whatever
            spelling, or the end of it; also of a file that is nothing of the table.
        spark: none is needed for small tables.
        where: a filter; the result says which step of a scan skips a data file, and why.
        trust_manifest_list: believe manifest lists although the summaries of snapshots count other files.

    Raises:
        UsageError: several files end so, or `path` is no file.
        ExpressionError, NotFoundError: the filter does not fit the table.
        UnsupportedError: the table is encrypted.
        UnavailableError: the store fails for now.
    """
    target = Target.of(path)
    check_source(spark)
    refuse_encrypted(table.metadata, "why")
    with spark_run("why", table.name, SILENT):
        return _Look(table, target, spark, where, trust_manifest_list=trust_manifest_list).told()


class _Look:
    """One look at a table for one file."""

    def __init__(
        self,
        table: Table,
        target: Target,
        spark: SparkSource,
        where: str | Expression | None,
        *,
        trust_manifest_list: bool,
    ) -> None:
        self._table, self._target, self._spark, self._where = table, target, spark, where
        self._trusts = trust_manifest_list
        self._unreadable: dict[str, str] = {}
        self._unsure: frozenset[int] = frozenset()
        self._notes: list[str] = []

    def told(self) -> WhyResult:
        manifests = read_manifests(self._table, self._spark, trust_manifest_list=self._trusts)
        self._unreadable |= manifests.unreadable
        names = named_locations(self._table, manifests, self._target)
        # A whole name that metadata has is no data file's too.
        if any(self._target.is_location or name.endswith(f"/{self._target.text}") for name in names):
            return self._by_name(self._target.chosen(names) or "", manifests)
        entries = find_entries(manifests.files, self._table, self._spark, self._target)
        self._unreadable |= entries.unreadable
        unread = snapshots_of(entries.unreadable, self._table, self._spark, manifests.files)
        self._unsure = manifests.unsure(self._table.metadata).union(*unread.values())
        chosen = self._target.chosen([*names, *entries.rows["file_path"].unique().to_pylist()])
        if chosen in names:
            return self._by_name(chosen or "", manifests)
        if chosen is not None:
            return self._by_entries(chosen, entries, manifests)
        return self._unnamed(manifests)

    def _by_name(self, location: str, manifests: Manifests) -> WhyResult:
        found = told_by_name(location, self._table, manifests, self._spark)
        if not found.fate:
            return self._read(found, {})
        state = State.CURRENT if found.is_current else State.RETAINED
        return self._result(location, found.kind, state, found.fate, self._head(location))

    def _by_entries(self, location: str, entries: Entries, manifests: Manifests) -> WhyResult:
        metadata = self._table.metadata
        rows = entries.of_file(location)
        hits = rows["manifest_path"].unique().to_pylist()
        named_by = snapshots_of(hits, self._table, self._spark, manifests.files)
        lineage = Lineage.of_entries(rows, named_by, self._unsure)
        kind = kind_of(rows["content"][0].as_py(), rows["file_format"][0].as_py())
        found = ByName(file_path=location, kind=kind, lineage=lineage)
        version = lineage.newest_reader(metadata)
        if version is None:
            return self._unread(found)
        live = {*rows.filter(pc.not_equal(rows["status"], int(Status.DELETED)))["manifest_path"].to_pylist()}
        named = [
            m for m in manifests.files if m.manifest_path in live and version.snapshot_id in named_by[m.manifest_path]
        ]
        told, notes = described(location, named, version, self._table, self._spark, self._where)
        self._notes += notes
        return self._read(found, told)

    def _read(self, found: ByName, told: dict[str, Any]) -> WhyResult:
        """A file that snapshots read."""
        metadata, lineage = self._table.metadata, found.lineage
        is_current = metadata.current_snapshot_id in lineage.readers
        info, kept, now_ms = self._head(found.file_path), self._kept(lineage.readers), self._table.runtime.now_ms()
        plans = plans_naming(self._table, self._target) if info is None else PlansNaming()
        named = plans.of_file(found.file_path)
        self._unreadable |= plans.unreadable
        if self._where is not None and "is_read_by_filter" not in told:
            self._notes.append("a filter says something of data files that a snapshot reads alone")
        if not territory(self._table).holds(found.file_path):
            self._notes.append(
                "it lies in no place of the table, so that it stays when no snapshot reads it any more, unless reclaim.roots "
                "names a directory above it"
            )
        told |= {
            "snapshots_count": len(lineage.readers),
            "retained_until_ms": None if kept is None else kept.until_ms,
            "kept_by": () if kept is None else kept.by,
            "history": events(lineage, metadata, found.added),
            "refs": reading_refs(lineage.readers, metadata),
            "plans": told_of(named, self._table.storage),
        }
        run = _in_trash(named)
        back = None if run is None else restore_command(self._table, run)
        fate = fate_of_read(is_current=is_current, kept=kept, now_ms=now_ms, is_missing=info is None, back=back)
        if is_current:
            return self._result(found.file_path, found.kind, State.CURRENT, fate, info, **told)
        fate = as_far_as_read(fate, self._unreadable)
        return self._result(found.file_path, found.kind, State.RETAINED, fate, info, **told)

    def _unread(self, found: ByName) -> WhyResult:
        """A file of the table's that no snapshot reads any more."""
        plans = plans_naming(self._table, self._target)
        self._unreadable |= plans.unreadable
        named = plans.of_file(found.file_path)
        told: dict[str, Any] = {
            "history": events(found.lineage, self._table.metadata),
            "plans": told_of(named, self._table.storage),
        }
        if (answer := self._of_plan(named)) is not None:
            state, fate, info = answer
            return self._result(found.file_path, found.kind, state, fate, info, **told)
        info = self._head(found.file_path)
        if self._unreadable:
            return self._result(found.file_path, found.kind, State.UNDECIDED, fate_of_unread(""), info, **told)
        if info is None:
            fate = fate_of_unread("its file is deleted")
            return self._result(found.file_path, found.kind, State.GONE, fate, info, **told)
        verdict = judged(info, self._table)
        told["removable_after_ms"] = verdict.removable_after_ms
        state = State.GARBAGE if verdict.state is State.ORPHAN else verdict.state
        return self._result(found.file_path, found.kind, state, fate_of_unread(verdict.fate), info, **told)

    def _unnamed(self, manifests: Manifests) -> WhyResult:
        """A file that neither metadata nor manifests name."""
        plans = plans_naming(self._table, self._target)
        self._unreadable |= plans.unreadable
        chosen = self._target.chosen([one.location for one in plans.named]) if plans.named else None
        named = plans.named[:1] and plans.of_file(chosen or plans.named[0].location)
        if named and self._target.is_location and not self._target.among([named[0].location]):
            # It was asked for by its place in the trash.
            return self._at(named[0].location)
        if (answer := self._of_plan(named)) is not None:
            state, fate, info = answer
            told = told_of(named, self._table.storage)
            return self._result(named[0].location, named[0].kind, state, fate, info, plans=told)
        location = named[0].location if named else self._target.text
        info = self._found(location)
        if info is None and named:
            told = told_of(named, self._table.storage)
            return self._result(location, named[0].kind, State.GONE, in_plan(told[0], self._table), None, plans=told)
        if info is None:
            state = State.UNDECIDED if self._unreadable else State.UNKNOWN
            return self._result(location, _UNNAMED, state, no_trace(None), None)
        if not self._unreadable and self._is_in_older_statistics(info, manifests):
            fate = "metadata in the metadata log names it as statistics; it goes when that metadata has left the log"
            return self._result(info.location, "statistics file", State.RETAINED, fate, info)
        if self._unreadable:
            return self._result(info.location, _UNNAMED, State.UNDECIDED, no_trace(info), info)
        verdict = judged(info, self._table)
        fate = f"{no_trace(info)}; {verdict.fate}"
        after_ms = verdict.removable_after_ms
        return self._result(info.location, _UNNAMED, verdict.state, fate, info, removable_after_ms=after_ms)

    def _at(self, location: str) -> WhyResult:
        """The same look at a file by its location."""
        return _Look(
            self._table, Target.of(location), self._spark, self._where, trust_manifest_list=self._trusts
        ).told()

    def _of_plan(self, named: tuple[Named, ...]) -> tuple[State, str, FileInfo | None] | None:
        """What becomes of a file that plans name, none of which may be gone already."""
        counting = [one for one in named if one.counts]
        if not counting:
            return None
        first = counting[0]
        told = told_of([first], self._table.storage)[0]
        state = State.TRASH if first.place == TRASH else State.PLANNED
        return state, as_far_as_read(in_plan(told, self._table), self._unreadable), first.found

    def _is_in_older_statistics(self, info: FileInfo, manifests: Manifests) -> bool:
        """Whether metadata in the log names a file, by which orphan removal goes too."""
        seen: Seen = manifests.reached.seen
        try:
            reached = reached_by(self._table, self._spark, trust_manifest_list=self._trusts, since=seen)
        except SafetyError as error:
            self._unreadable["the metadata log"] = error.message
            return False
        names = self._target.among(reached.named["location"].to_pylist())
        return any(same_file(name, info.location) for name in names)

    def _found(self, location: str) -> FileInfo | None:
        """The file in storage: at the location, or the only one below the table's location that ends so."""
        if self._target.is_location and (info := self._head(location)) is not None:
            return info
        text = self._target.text
        if self._target.is_location and (not text.startswith("/") or is_under(text, self._table.metadata.location)):
            return None
        listed = {info.location: info for info in listed_with_end(self._table, self._target)}
        chosen = self._target.chosen(listed)
        return None if chosen is None else listed[chosen]

    def _head(self, location: str) -> FileInfo | None:
        try:
            return self._table.storage.head(location)
        except UnsupportedError as error:
            self._notes.append(f"it cannot be looked whether it is there: {error.message}")
            return None

    def _kept(self, readers: frozenset[int]) -> Kept | None:
        try:
            table = self._table
            return kept_until(table.metadata, table.catalog.rules, readers, table.runtime.now_ms()) if readers else None
        except PropertyError as error:
            self._notes.append(f"when it expires cannot be determined: {error.message}")
            return None

    def _result(
        self, location: str, kind: str, state: State, answer: str, info: FileInfo | None, **told: Any
    ) -> WhyResult:
        notes = list(self._notes)
        text = self._target.text
        if self._target.is_location and not location.endswith(text) and not same_file(location, text):
            notes.append(f"{text!r} has its path under another scheme or authority, and is taken for the same file")
        if not is_gc_enabled(self._table.metadata):
            notes.append("the table has gc.enabled=false, so no run deletes any file of it")
        if (collector := self._table.catalog.garbage_collector) is not None:
            notes.append(f"of tables of catalog {self._table.catalog.name!r} {collector} alone deletes files")
        if self._unreadable:
            notes += unlooked(self._unreadable, self._unsure)
        return WhyResult(
            file_path=location,
            kind=str(kind),
            state=state,
            answer=answer,
            is_in_storage=info is not None,
            stored_bytes=None if info is None else info.size_bytes,
            created_ms=None if info is None else info.modified_ms,
            unreadable_files=tuple(self._unreadable),
            notes=tuple(notes),
            **told,
        )


def _in_trash(named: tuple[Named, ...]) -> str | None:
    """The run in whose trash a file is."""
    return next((one.plan.run for one in named if one.place == TRASH), None)
