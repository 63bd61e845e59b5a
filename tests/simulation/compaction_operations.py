"""Operations that put data files, delete files and manifests in the place of others: no row may change.

The model's data files hold rows at no positions: a row that others delete in a replaced file while it is rewritten is deleted
in the new file that holds it now.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import (
    AddedDeletes,
    ConvertDeletes,
    ConvertedFile,
    EntryDigests,
    NamedFile,
    RewriteDeletes,
)
from icekeep.commit.changes.rewrites import Carried, RewriteFiles, RewriteManifests
from icekeep.commit.file_sets import entry_digest
from icekeep.commit.manifests import ChangedDeletes, ManifestReader
from icekeep.errors import ConflictError, IcekeepError, OutcomeUnknownError
from icekeep.events import Event, Warned
from icekeep.maintenance.rewrite.run import TAG_PREFIX, pin_snapshot
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.reach import applied_delete, is_deletion_vector, is_newer, path_digest, sequence_number
from icekeep.spec.snapshots import SnapshotRef
from simulation.client import Client
from simulation.file_operations import OnBranch
from simulation.model import SKEW_MS, Live, Model
from simulation.world import LOCATION, Effect

if TYPE_CHECKING:
    from simulation.compaction_operations import Compact

Rows = frozenset[int]


class CarriedRows:
    """A `DeleteCarrier`: what the maintenance job's is for positions, with rows in their place.

    `written` names all delete files that any attempt has asked for.
    """

    def __init__(
        self,
        operation: "Compact",
        client: Client,
        visible: Mapping[str, Rows],
        applied: Mapping[str, Sequence[ManifestEntry]],
        added: Sequence[DataFile],
    ) -> None:
        """Args:
        visible: the rows of each replaced file that the new files hold.
        applied: the delete files that were applied to each.
        """
        self.written: frozenset[str] = frozenset()
        self._operation, self._client, self._model = operation, client, operation.model
        self._dropped = {path: self._model.rows[path] - rows for path, rows in visible.items()}
        self._applied = {path: _deleted_positions(self._model, path, applied[path]) for path in visible}
        self._born = {file.file_path: file for file in added}
        self._places = _places(visible, {path: self._model.rows[path] for path in self._born})
        self._files: dict[tuple[str, Rows, bool], DataFile] = {}
        self._attempts_count = 0

    def carried(
        self, changed: Mapping[str, ChangedDeletes], base: TableMetadata, noted: Callable[[str], None]
    ) -> Carried:
        self._attempts_count += 1
        moved: defaultdict[str, set[int]] = defaultdict(set)
        refusals = {}
        for path, one in sorted(changed.items()):
            deleted = _deleted_positions(self._model, path, one.deletes)
            needed = self._dropped[path] if one.lacks_keys else self._applied[path] if one.lacks_positions else Rows()
            if lost := needed - deleted:
                refusals[path] = f"rows {sorted(lost)} of {path!r}, which its rewrite left out, are back"
            for row in deleted - self._dropped[path]:
                moved[self._places[path, row]].add(row)
        seen = self._model.world.seen
        if refusals:
            seen["rewrites refused since rows that they left out are back"] += 1
            return Carried(refusals=refusals)
        seen["rewrites that carried deletes over"] += bool(moved)
        seen["rewrites that carried deletes over in a later attempt"] += bool(moved) and self._attempts_count > 1
        vectors = base.format_version > 2
        return Carried(tuple(self._file(path, Rows(moved[path]), vectors, noted) for path in sorted(moved)))

    def _file(self, path: str, rows: Rows, vectors: bool, noted: Callable[[str], None]) -> DataFile:
        key = path, rows, vectors
        if key not in self._files:
            location = f"{LOCATION}/data/{self._operation.number:03d}-carried-{len(self.written)}.parquet"
            self._model.deletes[location] = (path, rows)
            self.written |= {location}
            noted(location)
            with self._client.storage.write(location) as stream:
                stream.write(b"PAR1")
            form = {"file_format": "puffin", "content_offset": 4, "content_size_in_bytes": 40} if vectors else {}
            self._files[key] = DataFile(
                **{
                    "file_path": location,
                    "file_format": "PARQUET",
                    "spec_id": self._born[path].spec_id,
                    "partition": self._born[path].partition,
                    "record_count": len(rows),
                    "file_size_in_bytes": 4,
                    "content": FileContent.POSITION_DELETES,
                    "referenced_data_file": path,
                    **form,
                }
            )
        return self._files[key]


def _deleted_positions(model: Model, path: str, deletes: Iterable[ManifestEntry]) -> Rows:
    """The rows of a data file that deletes of positions delete in it."""
    found = (model.deletes[delete.data_file.file_path] for delete in deletes)
    return model.rows[path] & Rows().union(*(rows for target, rows in found if target == path))


def _places(visible: Mapping[str, Rows], added: Mapping[str, Rows]) -> dict[tuple[str, int], str]:
    """The new file of each row of each old one; a row that is in two of them is in two of the new ones."""
    where: defaultdict[int, list[str]] = defaultdict(list)
    for path, rows in sorted(added.items()):
        for row in rows:
            where[row].append(path)
    return {(path, row): where[row].pop() for path, rows in sorted(visible.items()) for row in sorted(rows)}


_CLEANS = 0.3
_CARRIES = 0.8


class Compact(OnBranch):
    """Rewrites some files into the current partition spec, with all deletes that reach them applied.

    Most carry over what others delete in these files meanwhile; to some, as to other users of the library, it is a conflict.
    """

    remove_dangling = False
    carrier: CarriedRows | None = None

    def change(self, client: Client, table: Table) -> Any:
        metadata = table.metadata
        entries, deletes = self.entries(client, table), self.entries(client, table, ManifestContent.DELETES)
        spec = self.spec(table)
        chosen = self.chosen(entries, spec)
        if not chosen:
            return None
        head = metadata.head(self.branch)
        assert head is not None
        self.removed = frozenset(e.data_file.file_path for e in chosen)
        self.read_number = head.sequence_number
        self.sequence_number = head.sequence_number if self.random.random() < 0.7 else None
        self.moved = frozenset(e.data_file.spec_id for e in chosen) - {spec.spec_id}
        visible = self.model.visible(self.live(table))
        rows = _as_sets(visible[path] for path in sorted(self.removed))
        applied = reaching_deletes(chosen, deletes, metadata.specs_by_id)
        added = self.write_files(client, table, *rows, spec=spec)
        if self.random.random() < _CARRIES:
            kept = {path: visible[path] for path in self.removed}
            self.carrier = CarriedRows(self, client, kept, applied, added)
            self.model.being_rewritten |= self.removed
            # A rewrite takes its time, and that is when others delete.
            client.sleep_ms(self.random.choice([0, 500, 2_000]))
        return RewriteFiles(
            removed=tuple(chosen),
            added=added,
            schema_id=metadata.current_schema_id,
            applied_deletes={path: frozenset(map(applied_delete, found)) for path, found in applied.items()},
            moved_spec_ids=self.random.choice([None, self.moved]),
            format_version=metadata.format_version,
            starting_sequence_number=self.read_number,
            data_sequence_number=self.sequence_number,
            remove_dangling=self.remove_dangling,
            proof=self.shown,
            carrier=self.carrier,
            branch=self.branch,
        )

    def spec(self, table: Table) -> PartitionSpec:
        """What the new files are written with."""
        return table.metadata.spec

    def chosen(self, entries: list[ManifestEntry], spec: PartitionSpec) -> list[ManifestEntry]:
        """The data files to replace."""
        return self.random.sample(entries, min(len(entries), self.random.randint(1, 4)))

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect | None:
        carried = frozenset[str]() if self.carrier is None else self.carrier.written
        return Effect(self.branch, self.removed, self.added, self.sequence_number, same_rows=True, may_carry=carried)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        super().check(model, before, after)
        live = model.live(after, self.branch)
        left = sorted(p for p in live if model.deletes.get(p, ("",))[0] in self.removed and model.unnamed.get(p, True))
        model.require(not left, "D7", f"{self.name} left {left}, which are for files that it replaced")
        if self.moved and self.added:
            live = model.live(before, self.branch)
            newer = sorted(path for path, file in live.items() if _is_newer_equality_delete(file, self.read_number))
            model.require(not newer, "D4", f"{self.name} moved rows to another spec, and {newer} came meanwhile")


class CompactAndClean(Compact):
    """Removes the delete files as well that reach nothing once it is done."""

    remove_dangling = True

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        super().check(model, before, after)
        require_no_dangling(model, model.live(after, self.branch), self.name)
        gone = model.live(before, self.branch).keys() - model.live(after, self.branch).keys() - self.removed
        self.model.world.seen["dangling delete files removed"] += len(gone)


class CompactIntoAnotherSpec(Compact):
    """Moves files of other partition specs into one of the table's, and may clean up as well."""

    def change(self, client: Client, table: Table) -> Any:
        self.remove_dangling = self.random.random() < _CLEANS
        return super().change(client, table)

    def spec(self, table: Table) -> PartitionSpec:
        return self.random.choice(table.metadata.partition_specs)

    def chosen(self, entries: list[ManifestEntry], spec: PartitionSpec) -> list[ManifestEntry]:
        return super().chosen([entry for entry in entries if entry.data_file.spec_id != spec.spec_id], spec)


class CompactHoldingItsStart(Compact):
    """Holds the snapshot that it read by a tag, as the job does, and takes its time.

    It lands up to three times, and once more for each tag that another run has left.
    """

    tag = ""

    @property
    def unrecognised(self) -> bool:
        return True

    def commit(self, client: Client, table: Table, change: Any) -> bool:
        assert self.start_id is not None
        run_id = str(client.new_uuid())
        self.tag = f"{TAG_PREFIX}{run_id}"
        runs = {name for name in table.metadata.refs if name.startswith(TAG_PREFIX)}
        self.moves_refs |= {self.tag, *runs}
        warnings = _Warnings()
        with pin_snapshot(table, self.start_id, run_id, client, warnings):
            for _ in range(self.random.randint(1, 4)):
                client.sleep_ms(self.random.choice([1_000, 30_000]))
                self._check_held()
            warnings.count = 0
            changed = super().commit(client, table, change)
            self._check_held()
        assert self.model.current is not None
        left = self.tag in self.model.current.refs
        self.model.require(bool(warnings.count) or not left, "R1", f"{self.name} left its tag behind")
        return changed

    def _check_held(self) -> None:
        """As long as the tag's age allows, what was read is there, whoever expires what."""
        current, world = self.model.current, self.model.world
        assert current is not None
        assert self.start_id is not None
        age_ms = world.scheduler.now_ms - self.began_ms
        held = self.tag in current.refs and self.start_id in current.snapshots_by_id
        may_be_gone = age_ms > 24 * 3600 * 1000 - SKEW_MS
        self.model.require(held or may_be_gone, "R1", f"snapshot {self.start_id}, which {self.name} reads, is not held")
        world.seen["looks at a starting snapshot that is held"] += 1

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect | None:
        return None if _tags(before) != _tags(after) else super().effect(model, before, after)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        was, now = _tags(before), _tags(after)
        if was == now:
            super().check(model, before, after)
            return
        same = before.snapshots == after.snapshots
        model.require(same, "C10", f"{self.name} changed snapshots where it moved a tag")
        for name in was.keys() - now.keys() - {self.tag}:
            ref = was[name]
            age_ms = model.world.scheduler.now_ms - before.snapshots_by_id[ref.snapshot_id].timestamp_ms
            is_dead = age_ms > (ref.max_ref_age_ms or 0) - SKEW_MS
            model.require(is_dead, "R1", f"{self.name} dropped {name!r} of a run that may be alive")
        model.require(now.keys() - was.keys() <= {self.tag}, "C10", f"{self.name} made tags of other runs")


def require_no_dangling(model: Model, live: dict[str, Live], name: str) -> None:
    """What reaches nothing is gone; that of unnamed deletes with bounds that were cut nobody can know by these."""
    left = [path for path in dangling(model, live) if model.unnamed.get(path, True)]
    model.require(not left, "D7", f"{name} left {left}, which reach no live data file")


def dangling(model: Model, live: dict[str, Live]) -> list[str]:
    """The delete files that reach no live data file, as the spec has it, one pair at a time."""
    data = {path: file for path, file in live.items() if file.content is FileContent.DATA}
    return sorted(
        path
        for path, file in live.items()
        if path not in data and not any(_reaches(model, path, file, *one) for one in data.items())
    )


def _reaches(model: Model, path: str, delete: Live, data_path: str, data: Live) -> bool:
    target, _ = model.deletes[path]
    number, data_number = delete.sequence_number or 0, data.sequence_number or 0
    if target is not None:
        return target == data_path and data_number <= number
    return (delete.is_global or delete.partition == data.partition) and data_number < number


def _is_newer_equality_delete(file: Live, number: int) -> bool:
    return file.content is FileContent.EQUALITY_DELETES and (file.sequence_number or 0) > number


def _tags(metadata: TableMetadata) -> dict[str, SnapshotRef]:
    return {name: ref for name, ref in metadata.refs.items() if name.startswith(TAG_PREFIX)}


def _as_sets(rows: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """The same rows in as few sets as hold them: what was published twice is there twice."""
    counts = Counter(row for held in rows for row in held)
    return [
        frozenset(row for row, count in counts.items() if count > at) for at in range(max(counts.values(), default=0))
    ]


class _Warnings:
    """A listener that counts what went wrong on the side."""

    def __init__(self) -> None:
        self.count = 0

    def on(self, event: Event) -> None:
        self.count += isinstance(event, Warned)


_PAUSES_MS = (0, 1_000, 10_000)


class OnDeletes(OnBranch):
    """Reads the delete files of a branch and replaces some of them."""

    def change(self, client: Client, table: Table) -> Any:
        head = table.metadata.head(self.branch)
        if table.metadata.format_version == 1 or head is None:
            return None
        self.makes_vectors = table.metadata.format_version > 2
        deletes = self.entries(client, table, ManifestContent.DELETES)
        data = {entry.data_file.file_path: entry for entry in self.entries(client, table)}
        change = self.replacement(client, table, data, deletes)
        client.sleep_ms(self.random.choice(_PAUSES_MS))
        return change

    def replacement(
        self, client: Client, table: Table, data: dict[str, ManifestEntry], deletes: Sequence[ManifestEntry]
    ) -> Any:
        """The change, on live data files by their paths and live delete files; null if there is nothing to do."""
        raise NotImplementedError

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        super().check(model, before, after)
        right = not self.added or self.makes_vectors is (after.format_version > 2)
        model.require(
            right, "D3", f"{self.name} added delete files of a kind that version {after.format_version} has not"
        )

    def chosen(self, deletes: Sequence[ManifestEntry]) -> list[ManifestEntry]:
        """Some of the delete files."""
        return self.random.sample(deletes, min(len(deletes), self.random.randint(1, 4)))

    def write_positions(self, client: Client, data: DataFile, rows: frozenset[int]) -> DataFile:
        """A position delete file or a vector of a data file."""
        path = f"{LOCATION}/data/{self.number:03d}-{len(self.added)}-deletes.parquet"
        self.model.deletes[path] = (data.file_path, rows)
        self.added |= {path}
        with client.storage.write(path) as stream:
            stream.write(b"PAR1")
        file = DataFile(
            file_path=path,
            file_format="PARQUET",
            spec_id=data.spec_id,
            partition=data.partition,
            record_count=len(rows),
            file_size_in_bytes=4,
            content=FileContent.POSITION_DELETES,
            referenced_data_file=data.file_path,
        )
        form = {"file_format": "puffin", "content_offset": 4, "content_size_in_bytes": 40}
        return replace(file, **form) if self.makes_vectors else file

    def rows_in(self, deletes: Sequence[ManifestEntry]) -> frozenset[int]:
        """The rows that some delete files delete, where they reach."""
        return frozenset[int]().union(*(self.model.deletes[d.data_file.file_path][1] for d in deletes))


class ConvertByValue(OnDeletes):
    """Puts deletes of positions in the place of equality deletes, in all data files that these reach."""

    def replacement(
        self, client: Client, table: Table, data: dict[str, ManifestEntry], deletes: Sequence[ManifestEntry]
    ) -> Any:
        converted = self.chosen([d for d in deletes if d.data_file.content is FileContent.EQUALITY_DELETES])
        if not converted:
            return None
        specs, head = table.metadata.specs_by_id, table.metadata.head(self.branch)
        assert head is not None
        positions = [d for d in deletes if d.data_file.content is FileContent.POSITION_DELETES]
        by_value = reaching_deletes(data.values(), converted, specs)
        by_position = reaching_deletes(data.values(), positions, specs)
        added, named, replaced = list[DataFile](), list[ConvertedFile](), list[ManifestEntry]()
        for path in sorted(path for path, reaching in by_value.items() if reaching):
            found = self.model.rows[path] & self.rows_in(by_value[path])
            if not found:
                continue
            # As the job does: positions that are deleted already may be so no more where this lands, after a rollback.
            merged = by_position[path] if self.makes_vectors else ()
            named.append(ConvertedFile(data[path], tuple(merged)))
            if found <= self.rows_in(merged):
                continue
            added.append(self.write_positions(client, data[path].data_file, found | self.rows_in(merged)))
            replaced += merged
        self.removed = frozenset(d.data_file.file_path for d in (*converted, *replaced))
        return ConvertDeletes(
            converted=tuple(converted),
            data_files=EntryDigests.of(entry_digest(data[path]) for path, some in by_value.items() if some),
            added=tuple(added),
            named=tuple(named),
            replaced=tuple(replaced),
            format_version=table.metadata.format_version,
            starting_sequence_number=head.sequence_number,
            branch=self.branch,
        )

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(self.branch, self.removed, self.added, same_rows=True)


class MergeDeletes(OnDeletes):
    """Merges the position delete files of each of some data files, into vectors in version 3, and drops what reaches none."""

    def replacement(
        self, client: Client, table: Table, data: dict[str, ManifestEntry], deletes: Sequence[ManifestEntry]
    ) -> Any:
        positions = [d for d in deletes if d.data_file.content is FileContent.POSITION_DELETES]
        by_target: defaultdict[str, list[ManifestEntry]] = defaultdict(list)
        for delete in positions:
            if delete.data_file.file_path in self.model.unnamed:
                continue
            by_target[str(delete.data_file.referenced_data_file)].append(delete)
        self.numbers: dict[str, int] = {}
        rewritten, dangling = list[ManifestEntry](), list[ManifestEntry]()
        added, named = list[AddedDeletes](), dict[bytes, NamedFile]()
        for path in self.random.sample(sorted(by_target), min(len(by_target), self.random.randint(1, 3))):
            some = [d for d in by_target[path] if not is_deletion_vector(d.data_file)]
            has_vector = len(some) < len(by_target[path])
            number = sequence_number(data[path]) if path in data else None
            if number is None and (has_vector or self.random.random() < 0.5):
                dangling += by_target[path]
            elif some:
                rewritten += some
                kept = [] if number is None else [d for d in some if is_newer(d, number)]
                late = [sequence_number(d) for d in some if d not in kept]
                if has_vector:
                    kept = []
                elif kept:
                    file = self.write_positions(client, data[path].data_file, self.rows_in(kept))
                    self.numbers[file.file_path] = max(map(sequence_number, kept))
                    added.append(AddedDeletes(file, self.numbers[file.file_path]))
                least = min(map(sequence_number, kept), default=None)
                named[path_digest(path)] = NamedFile(least, max(late, default=None), has_vector=has_vector)
        if not (rewritten or dangling):
            return None
        self.removed = frozenset(d.data_file.file_path for d in (*rewritten, *dangling))
        return RewriteDeletes(
            rewritten=tuple(rewritten),
            added=tuple(added),
            named=named,
            dangling=tuple(dangling),
            format_version=table.metadata.format_version,
            branch=self.branch,
        )

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(self.branch, self.removed, self.added, same_rows=True, numbers=self.numbers)


_TAKEN = 0.7
_MANIFEST_PAUSES_MS = (0, 500, 2_000, 10_000)


class MergeManifests(OnBranch):
    """Puts the live entries of some manifests, of data and of deletes, into new ones, and takes its time."""

    drops_dangling = False

    def change(self, client: Client, table: Table) -> Any:
        metadata, reader = table.metadata, ManifestReader(client.storage)
        head = metadata.head(self.branch)
        manifests = [] if head is None else reader.manifests(head)
        chosen = [m for m in manifests if self.random.random() < _TAKEN]
        kinds: defaultdict[tuple[int, ManifestContent], list[ManifestEntry]] = defaultdict(list)
        for m in chosen:
            kinds[m.partition_spec_id, m.content] += [e for e in reader.entries(m, metadata) if e.is_live]
        if head is None or not (any(kinds.values()) or self.drops_dangling):
            return None
        self.locations: list[str] = []
        added = [m for kind, entries in kinds.items() for m in self._written(client, metadata, *kind, entries)]
        client.sleep_ms(self.random.choice(_MANIFEST_PAUSES_MS))
        return RewriteManifests(
            replaced=tuple(chosen),
            added=tuple(added),
            drop_dangling_deletes=self.drops_dangling,
            proof=self.shown,
            format_version=metadata.format_version,
            branch=self.branch,
        )

    def _written(
        self,
        client: Client,
        metadata: TableMetadata,
        spec_id: int,
        content: ManifestContent,
        entries: Sequence[ManifestEntry],
    ) -> list[ManifestFile]:
        """Manifests of a few entries each, in any order."""
        version, left, written = metadata.format_version, self.random.sample(entries, len(entries)), []
        encoder = EntryEncoder(metadata.partition_type(spec_id), version)
        while left:
            location = f"{metadata.location}/metadata/merged-{self.number:03d}-{len(self.locations)}.avro"
            spec, schema = metadata.specs_by_id[spec_id], metadata.schema
            builder = ManifestBuilder(location, encoder, spec, schema, format_version=version, content=content)
            for _ in range(min(len(left), self.random.randint(1, 5))):
                builder.add(replace(left.pop(), status=Status.EXISTING))
            contents, manifest = builder.finish(None)
            self.locations.append(location)
            with client.storage.write(location) as stream:
                stream.write(contents)
            written.append(manifest)
        return written

    def commit(self, client: Client, table: Table, change: Any) -> bool:
        try:
            return super().commit(client, table, change)
        except OutcomeUnknownError:
            raise
        except IcekeepError as error:
            changed = isinstance(error, ConflictError) and "no longer in the table as it was read" in error.message
            self.model.world.seen["rewrites of manifests refused since others had changed them"] += changed
            client.storage.delete_many(self.locations)
            raise

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(self.branch, same_rows=True)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        super().check(model, before, after)
        was, now = model.live(before, self.branch), model.live(after, self.branch)
        gone = sorted(path for path, file in was.items() if path not in now and file.content is not FileContent.DATA)
        reaching = sorted({*gone} - {*dangling(model, was)})
        model.require(not reaching, "D7", f"{self.name} left out {reaching}, which reach live data files")
        model.require(self.drops_dangling or not gone, "D6", f"{self.name} left out {gone}")


class MergeManifestsAndClean(MergeManifests):
    """Leaves out the delete files as well that reach nothing."""

    drops_dangling = True

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        super().check(model, before, after)
        require_no_dangling(model, model.live(after, self.branch), self.name)
