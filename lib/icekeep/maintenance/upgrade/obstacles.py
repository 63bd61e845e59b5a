"""What stands in the way of a newer format version, and what else changes with it; nothing is written.

Where it is found:

metadata alone      columns, snapshots without a manifest list, keys of encryption, engines, Flink's history, properties, branches
entries of heads    delete files, file formats, places: one pass over the manifests that branches and tags list

An obstacle that holds up the upgrade is a mistake that nobody can take back: some software can no longer read or write the table,
or the table is damaged. All else is said, and holds up nothing.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.commit.summary import producer_of
from icekeep.errors import shown_command
from icekeep.maintenance.upgrade.engines import EngineSeen, engines_seen
from icekeep.planning.entries import DecodedEntries, EntryFilter, SpecFilter, folded
from icekeep.planning.manifest_lists import listed_manifests
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import is_true
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.times import format_time
from icekeep.spelling import counted, counted_doing
from icekeep.storage.locations import is_under

ENGINES, EQUALITY_DELETES, FLINK_HISTORY = "engines", "equality-deletes", "flink-history"
ENCRYPTION, COLUMNS, NO_LISTS = "encryption", "row-id-columns", "no-manifest-list"
FORCIBLE = (ENGINES, EQUALITY_DELETES, FLINK_HISTORY)
"""Obstacles that an operator can decide not to be held up by: the table itself is sound after the upgrade."""

HOLDING_UP = (*FORCIBLE, ENCRYPTION, COLUMNS, NO_LISTS)

UNKNOWN_ENGINES, READERS, BRANCHES, PROPERTIES = "unknown-engines", "readers", "branches", "properties"
POSITION_DELETES, FILE_FORMATS, ELSEWHERE = "position-deletes", "file-formats", "files-elsewhere"

_COLUMNS = frozenset({"content", "file_path", "file_format", "file_size_in_bytes"})
_SHOWN = 3


class UpgradeObstacle(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know before an upgrade.

    Attributes:
        name: by which `--force` names it.
        holds_up: whether the upgrade is refused because of it.
        found: what was found.
        advice: what to do about it.
        found_count: of what was found, such as files.
    """

    name: str
    holds_up: bool
    found: str
    advice: str
    found_count: int | None = None


def obstacles_of(table: Table, to: int, spark: SparkSource) -> tuple[UpgradeObstacle, ...]:
    """Everything that is to be known before a table gets format version `to`, what holds it up first.

    Raises:
        InvalidTableError, MissingFileError: a manifest list or a manifest that a branch or tag leads to cannot be read.
    """
    metadata = table.metadata
    if to <= metadata.format_version:
        return ()
    found = [*obstacles_in_metadata(metadata, to), *_of_files(table, to, spark)]
    return tuple(sorted(found, key=lambda one: not one.holds_up))


def obstacles_in_metadata(metadata: TableMetadata, to: int) -> list[UpgradeObstacle]:
    """The part that needs no manifest."""
    found = [*_of_format(metadata, to), *_of_engines(metadata, to), *_of_flink(metadata, to)]
    changed = _changed_properties(metadata.properties, metadata.format_version, to)
    if changed:
        found.append(
            UpgradeObstacle(
                name=PROPERTIES,
                holds_up=False,
                found="; ".join(changed),
                advice="look whether they still say what you mean",
                found_count=len(changed),
            )
        )
    branches = [name for name, ref in metadata.refs.items() if ref.is_branch]
    if to >= 3 and len(branches) > 1:
        found.append(
            UpgradeObstacle(
                name=BRANCHES,
                holds_up=False,
                found=f"{counted(len(branches), 'branches')}: the next commit to each gives all of its rows ids of its own",
                advice="do not compare row ids of one branch with those of another; drop branches that nobody needs",
                found_count=len(branches),
            )
        )
    return found


def against(metadata: TableMetadata, *, to: int, seen: Collection[int], forced: Collection[str]) -> str:
    """What stands against an upgrade by metadata alone, on a base to which others have committed since it was looked at.

    Args:
        seen: ids of the snapshots that were looked at.
        forced: names of obstacles that hold up nothing.
    """
    held = [one for one in obstacles_in_metadata(metadata, to) if one.holds_up and one.name not in forced]
    if held:
        return f"{held[0].name}: {held[0].found}"
    if EQUALITY_DELETES in forced:
        return ""
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id not in seen and (snapshot.summary or {}).get("added-equality-delete-files", "0") != "0":
            return f"{EQUALITY_DELETES}: snapshot {snapshot.snapshot_id} has added some since the table was looked at"
    return ""


def _of_format(metadata: TableMetadata, to: int) -> list[UpgradeObstacle]:
    found = []
    if metadata.is_encrypted:
        found.append(
            UpgradeObstacle(
                name=ENCRYPTION,
                holds_up=True,
                found="the table is encrypted, which icekeep does not support yet",
                advice="upgrade it with the engine that has its keys",
            )
        )
    reserved = {ROW_ID.name, LAST_UPDATED_SEQUENCE_NUMBER.name}
    taken = sorted(field.name for field in metadata.schema.fields if field.name in reserved)
    if to >= 3 and taken:
        found.append(
            UpgradeObstacle(
                name=COLUMNS,
                holds_up=True,
                found=f"{', '.join(taken)}: columns of this name are row lineage in format version 3",
                advice="rename them",
                found_count=len(taken),
            )
        )
    unlisted = [s.snapshot_id for s in metadata.snapshots if s.manifest_list is None]
    if to >= 2 and unlisted:
        found.append(
            UpgradeObstacle(
                name=NO_LISTS,
                holds_up=True,
                found=f"{counted_doing(len(unlisted), 'snapshots', 'have')} no manifest list, which only format version 1 "
                f"allows, such as {unlisted[0]}",
                advice="make a new snapshot, such as by rewriting manifests, and expire these",
                found_count=len(unlisted),
            )
        )
    return found


def _of_engines(metadata: TableMetadata, to: int) -> list[UpgradeObstacle]:
    seen = engines_seen(metadata.snapshots, to)
    found = []
    if behind := [one for one in seen if one.problem]:
        found.append(
            UpgradeObstacle(
                name=ENGINES,
                holds_up=True,
                found="; ".join(_engine_text(one) for one in behind[:_SHOWN]) + _more(behind),
                advice=f"upgrade them first; if they write to this table no more, force {ENGINES}",
                found_count=len(behind),
            )
        )
    if unknown := [one for one in seen if not one.is_known]:
        found.append(
            UpgradeObstacle(
                name=UNKNOWN_ENGINES,
                holds_up=False,
                found="; ".join(_engine_text(one) for one in unknown[:_SHOWN]) + _more(unknown),
                advice=f"find out whether their releases read and write format version {to}",
                found_count=len(unknown),
            )
        )
    found.append(
        UpgradeObstacle(
            name=READERS,
            holds_up=False,
            found="engines that only read leave no trace in a table",
            advice=f"ask who reads it, and whether their engines read format version {to}",
        )
    )
    return found


def _engine_text(engine: EngineSeen) -> str:
    problem = f": {engine.problem}" if engine.problem else ""
    return (
        f"{engine.name} ({counted(engine.snapshots_count, 'snapshots')}, last {format_time(engine.last_ms)}){problem}"
    )


def _of_flink(metadata: TableMetadata, to: int) -> list[UpgradeObstacle]:
    """A Flink job that writes deletes commits vectors in version 3, for which it needs the branch's whole history."""
    if to < 3 or metadata.format_version >= 3:
        return []
    for name, ref in sorted(metadata.refs.items()):
        if not ref.is_branch:
            continue
        line = [*metadata.ancestors(ref.snapshot_id)]
        deleting = next((s for s in line if producer_of(s.summary).engine == "Flink" and _adds_deletes(s)), None)
        if deleting is not None and line[-1].parent_snapshot_id is not None:
            return [
                UpgradeObstacle(
                    name=FLINK_HISTORY,
                    holds_up=True,
                    found=f"Flink writes deletes to branch {name!r} (snapshot {deleting.snapshot_id}), and the branch's history "
                    f"is cut before snapshot {line[-1].snapshot_id}: in version 3 its sink (Iceberg up to 1.12) commits none",
                    advice=f"write with another engine; if the job never starts again, force {FLINK_HISTORY}",
                )
            ]
    return []


def _adds_deletes(snapshot: Snapshot) -> bool:
    summary = snapshot.summary or {}
    return any(summary.get(key, "0") != "0" for key in ("added-equality-delete-files", "added-position-delete-files"))


_IGNORED_IN_3 = {
    "write.delete.format.default": "position deletes are vectors in Puffin files",
    "write.delete.granularity": "there is one vector for each data file",
    "write.delete.target-file-size-bytes": "vectors are put together by writers",
}
_IGNORED_IN_2 = {
    "compatibility.snapshot-id-inheritance.enabled": "entries always inherit snapshot ids",
    "write.manifest-lists.enabled": "every snapshot has a manifest list",
}
_MODES = ("write.delete.mode", "write.update.mode", "write.merge.mode")


def _changed_properties(properties: Mapping[str, str], old: int, to: int) -> list[str]:
    """Properties of the table that mean something else in the newer version."""
    ignored = {**(_IGNORED_IN_2 if old < 2 <= to else {}), **(_IGNORED_IN_3 if old < 3 <= to else {})}
    changed = [f"{key} has no effect any more: {why}" for key, why in ignored.items() if key in properties]
    if old < 2 <= to:
        changed += [
            f"{key}=merge-on-read takes effect: Spark writes delete files"
            for key in _MODES
            if properties.get(key) == "merge-on-read"
        ]
        if is_true(properties, "write.upsert.enabled", default=False):
            changed.append("write.upsert.enabled takes effect: Flink writes equality deletes")
    return changed


class _FileCounts:
    """A `Fold` of the entries of heads: how many files of each kind there are."""

    def __init__(self, location: str) -> None:
        self._root = location
        self.equality_deletes = self.position_deletes = self.elsewhere = 0
        self.example = ""
        self.formats: dict[str, int] = {}

    def add(self, decoded: DecodedEntries) -> None:
        rows = decoded.entries
        contents = {
            content: pc.sum(pc.equal(rows["content"], int(content.value))).as_py() or 0 for content in FileContent
        }
        self.equality_deletes += contents[FileContent.EQUALITY_DELETES]
        self.position_deletes += contents[FileContent.POSITION_DELETES]
        is_data = pc.equal(rows["content"], int(FileContent.DATA.value))
        for row in pc.value_counts(pc.utf8_upper(rows["file_format"].filter(is_data))):
            name = row["values"].as_py()
            self.formats[name] = self.formats.get(name, 0) + row["counts"].as_py()
        # Most lie right below the location as it is written; only the others are compared by whole components.
        below = pc.starts_with(rows["file_path"], f"{self._root.rstrip('/')}/")
        for path in rows["file_path"].filter(pc.invert(below)).to_pylist():
            if not is_under(path, self._root):
                self.elsewhere += 1
                self.example = self.example or path

    def merge(self, other: "_FileCounts") -> None:
        for name in ("equality_deletes", "position_deletes", "elsewhere"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.example = self.example or other.example
        for name, count in other.formats.items():
            self.formats[name] = self.formats.get(name, 0) + count


def _of_files(table: Table, to: int, spark: SparkSource) -> Iterable[UpgradeObstacle]:
    metadata = table.metadata
    ids = dict.fromkeys(ref.snapshot_id for ref in metadata.refs.values())
    heads = [metadata.snapshots_by_id[i] for i in ids if i in metadata.snapshots_by_id]
    if not heads or metadata.is_encrypted:
        return
    manifests = listed_manifests(table.storage, spark, heads, check=True, trust=True).manifests
    specs = {
        spec_id: SpecFilter(metadata.partition_type(spec_id)) for spec_id in {m.partition_spec_id for m in manifests}
    }
    new: Callable[[], _FileCounts] = partial(_FileCounts, metadata.location)
    counts = folded(table.storage, spark, manifests, EntryFilter(specs=specs), _COLUMNS, new)
    yield from _of_counts(counts, to, table.full_name)


def _of_counts(counts: _FileCounts, to: int, name: str) -> Iterable[UpgradeObstacle]:
    if to >= 3 and counts.equality_deletes:
        convert = shown_command("rewrite_position_deletes", "--table", name, "--convert-equality-deletes")
        yield UpgradeObstacle(
            name=EQUALITY_DELETES,
            holds_up=True,
            found=f"{counted(counts.equality_deletes, 'equality delete files')}: they stay valid, but rows that are changed by "
            "them have no lineage (they look deleted and made new), and format version 4 will allow no new ones",
            advice=f"run `{convert}` first; if their writer goes on and that is meant, force {EQUALITY_DELETES}",
            found_count=counts.equality_deletes,
        )
    if to >= 3 and counts.position_deletes:
        yield UpgradeObstacle(
            name=POSITION_DELETES,
            holds_up=False,
            found=f"{counted(counts.position_deletes, 'position delete files')}: they stay readable, and become deletion vectors "
            "when more rows of their data files are deleted, or deletes are rewritten",
            advice=f"run `{shown_command('rewrite_position_deletes', '--table', name)}` after the upgrade",
            found_count=counts.position_deletes,
        )
    others = {name: count for name, count in sorted(counts.formats.items()) if name != "PARQUET"}
    if to >= 3 and others:
        files = ", ".join(f"{count:,} in {name}" for name, count in others.items())
        yield UpgradeObstacle(
            name=FILE_FORMATS,
            holds_up=False,
            found=f"data files: {files}; Iceberg Java (up to 1.12) reads no default values of columns that an ORC file lacks, "
            "and of other engines it is unknown",
            advice="add no column with a default before these files are written as Parquet",
            found_count=sum(others.values()),
        )
    if counts.elsewhere:
        yield UpgradeObstacle(
            name=ELSEWHERE,
            holds_up=False,
            found=f"{counted_doing(counts.elsewhere, 'files', 'lie')} outside the table's location, such as {counts.example!r}",
            advice="nothing for this upgrade; before a copy, or relative locations (format version 4), rewrite them",
            found_count=counts.elsewhere,
        )


def _more(some: Sequence[EngineSeen]) -> str:
    return f"; and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
