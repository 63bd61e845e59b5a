"""Rewrites of manifests as the job plans them: new manifests are written, and wait to be listed."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.manifests import ManifestReader
from icekeep.maintenance.manifests.candidates import ManifestCandidates, candidates
from icekeep.maintenance.manifests.rules import RewriteManifestsRequest, RewriteRules, checked_rules
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder
from kit.changes import run
from kit.memory_catalog import MemoryCatalog, after
from kit.no_spark import no_spark
from kit.row_deletes import path_of
from kit.tables import EVENTS, add, memory_table, orphans, raw, raw_list

PREFIX = "optimized"


def asked(table: Table, **arguments: Any) -> RewriteRules:
    """What arguments of `rewrite_manifests` come to for a table."""
    return checked_rules(table.metadata, RewriteManifestsRequest(**arguments))


def chosen(table: Table, *, spark: Any = no_spark, **arguments: Any) -> ManifestCandidates:
    """What `rewrite_manifests` would rewrite."""
    return candidates(table, asked(table, **arguments), spark, 0)


def listed(table: Table, branch: str = "main") -> list[ManifestFile]:
    """The manifests of a branch that may hold live files."""
    head = table.metadata.head(branch)
    return [] if head is None else [m for m in _reader(table).manifests(head) if m.may_have_live_files]


def live_in(table: Table, manifest: ManifestFile) -> list[ManifestEntry]:
    """The live entries of a manifest."""
    return [entry for entry in _reader(table).entries(manifest, table.metadata) if entry.is_live]


def stated(table: Table, branch: str = "main") -> list[str]:
    """All that is said of the live files of a branch, but which status they have and where they are listed."""
    entries = [entry for m in listed(table, branch) for entry in live_in(table, m)]
    return sorted(repr(replace(entry, status=Status.EXISTING)) for entry in entries)


def staged(
    table: Table,
    name: str,
    entries: Iterable[ManifestEntry],
    spec_id: int = 0,
    content: ManifestContent = ManifestContent.DATA,
) -> ManifestFile:
    """A manifest of existing entries that no snapshot lists yet."""
    metadata = table.metadata
    builder = ManifestBuilder(
        f"{metadata.location}/metadata/{name}.avro",
        EntryEncoder(metadata.partition_type(spec_id), metadata.format_version),
        metadata.specs_by_id[spec_id],
        metadata.schema,
        format_version=metadata.format_version,
        content=content,
    )
    for entry in entries:
        builder.add(replace(entry, status=Status.EXISTING))
    data, manifest = builder.finish(None)
    table.storage.create(builder.location, data)
    return manifest


def rewrite(
    table: Table,
    *,
    each: int = 2,
    branch: str = "main",
    chosen: Callable[[ManifestFile], Any] = lambda m: True,
    prefix: str = PREFIX,
    **options: Any,
) -> RewriteManifests:
    """A change that clusters the live entries of chosen manifests by partition and path, so many to each new one."""
    replaced, kinds = [m for m in listed(table, branch) if chosen(m)], defaultdict(list)
    for m in replaced:
        kinds[m.partition_spec_id, m.content] += live_in(table, m)
    added = []
    for (spec_id, content), entries in kinds.items():
        entries.sort(key=_order)
        for start in range(0, len(entries), each):
            name = f"{prefix}-m-{len(added)}"
            added.append(staged(table, name, entries[start : start + each], spec_id, content))
    return RewriteManifests(replaced=tuple(replaced), added=tuple(added), branch=branch, **options)


def latest(table: Any) -> Any:
    """The table as it is now."""
    return table.catalog.load(EVENTS)


def run_beside(table: Any, *acts: Callable[[], Any], change: Any = None, branch: str = "main", **options: Any) -> Any:
    """What comes of a rewrite where others act before its swaps, one before each: the files that they leave, in all fields."""
    left: list[list[str]] = []

    def acting(act: Callable[[], Any]) -> Callable[[], None]:
        def do() -> None:
            act()
            left.append(stated(latest(table), branch))

        return do

    change = rewrite(table, branch=branch, **options) if change is None else change
    table.catalog.follow(*(after(acting(act)) for act in acts))
    result = run(table, change)
    assert stated(result.table, branch) == left[-1]
    assert len(left) == len(acts)
    assert orphans(table.catalog) == set()
    return result


def deleting(table: Any, *gone: str, branch: str = "main") -> Callable[[], Any]:
    """Another writer, who deletes files by their names."""
    return lambda: run(latest(table), DeleteFiles(paths=frozenset(map(path_of, gone)), branch=branch))


def six(catalog: MemoryCatalog, version: int = 2) -> Table:
    """Six files, two in each of three commits; `rewrite` puts `a b`, `c d` and `e f` together."""
    table = memory_table(catalog, format_version=version)
    return add(add(add(table, "a", "d"), "c", "f"), "b", "e")


def names(table: Table, branch: str = "main") -> dict[str, set[str]]:
    """The names of the files that each manifest lists as live, by its own name."""
    return {
        row["manifest_path"].rsplit("/", 1)[-1]: {
            record["data_file"]["file_path"].rsplit("/", 1)[-1]
            for record in raw(table, row["manifest_path"])
            if record["status"] != Status.DELETED
        }
        for row in raw_list(table, branch)
    }


def kept_as_staged(table: Table) -> list[int]:
    """The numbers of the manifests that `rewrite` has written and that are listed as they are."""
    parts = (name.removesuffix(".avro").rpartition(f"{PREFIX}-m-") for name in names(table))
    return sorted(int(number) for _, found, number in parts if found)


def _reader(table: Table) -> ManifestReader:
    """Past whatever a test does at the calls of a storage."""
    return ManifestReader(getattr(table.storage, "inner", table.storage))


def _order(entry: ManifestEntry) -> tuple[str, str, int]:
    file = entry.data_file
    return repr(file.partition), file.file_path, file.content_offset or 0
