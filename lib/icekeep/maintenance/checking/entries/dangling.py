"""Delete files that reach no live data file (214, 235), at the heads of branches, by the rule that commits go by."""

from collections.abc import Hashable, Mapping

import msgspec

from icekeep.commit.dangling import Dangling, dangling
from icekeep.commit.filtering import EntryReader, without_history
from icekeep.commit.live_files import live_among
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.formats.deletes.read import hold_own_path
from icekeep.maintenance.checking.faults import Fault, Tally
from icekeep.maintenance.checking.manifest_classes import DANGLING_DELETE, VECTOR_TOO_OLD
from icekeep.maintenance.checking.subject import Listed, Subject
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.spec.manifests.structs import DataFile, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import is_deletion_vector, path_digest
from icekeep.spec.snapshots import MAIN, Snapshot


def check_dangling(subject: Subject, listed: Listed) -> None:
    """Tell the delete files of the heads that are looked at which reach nothing there.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    metadata = subject.table.metadata
    reader = SparkManifestReader(subject.spark, subject.table.storage)
    looked_at = {snapshot.snapshot_id: snapshot for snapshot in subject.snapshots}
    for snapshot_id, names in _heads(metadata).items():
        if snapshot_id not in looked_at:
            continue
        try:
            subject.tally.merge(_found(subject, listed, looked_at[snapshot_id], names, reader))
        except (InvalidTableError, UnsupportedError, UsageError) as error:
            subject.tally.gap(f"which delete files of {_said(names)} reach nothing", first_line(error))


def _heads(metadata: TableMetadata) -> dict[int, tuple[str, ...]]:
    """The heads of branches, with the names of these."""
    heads = {name: ref.snapshot_id for name, ref in metadata.refs.items() if ref.is_branch}
    if metadata.current_snapshot_id is not None:
        heads.setdefault(MAIN, metadata.current_snapshot_id)
    return {head: tuple(sorted(n for n in heads if heads[n] == head)) for head in dict.fromkeys(heads.values())}


def _found(subject: Subject, listed: Listed, head: Snapshot, names: tuple[str, ...], reader: ManifestReader) -> Tally:
    tally = Tally(subject.tally.whole)
    members = {listed.manifests[number].manifest_path for number in listed.members.get(head.snapshot_id, ())}
    live = live_among(listed.manifests[number] for number in listed.members.get(head.snapshot_id, ()))
    if not live.deletes:
        return tally
    if any(manifest.manifest_path not in members for manifest in reader.manifests(head)):
        # The data files that a delete file reaches may be there.
        tally.gap(f"which delete files of {_said(names)} reach nothing", "a manifest of it cannot be read")
        return tally
    base = subject.table.metadata
    found = dangling(live.deletes, live.data, (), base, reader, proof=hold_own_path)
    if found is not None:
        work = _FaultsOf(without_history(base), found, head.snapshot_id, names, tally.whole)
        for some in reader.gathered(live.deletes, work):
            tally.merge(some)
    return tally


class _FaultsOf(msgspec.Struct, frozen=True):
    """The dangling delete files of a manifest."""

    base: TableMetadata
    dangling: Dangling
    snapshot_id: int
    branches: tuple[str, ...]
    whole: frozenset[int]

    @property
    def key(self) -> Hashable:
        return "faults", self.dangling.numbers, self.snapshot_id

    def run(self, manifest: ManifestFile, reader: EntryReader) -> Tally:
        tally = Tally(self.whole)
        for entry in reader.entries(manifest, self.base):
            if entry.is_live and self.dangling.entry(entry):
                tally.add(self._fault(entry, manifest))
        return tally

    def _fault(self, entry: ManifestEntry, manifest: ManifestFile) -> Fault:
        file = entry.data_file
        number, what = DANGLING_DELETE, "it"
        if is_deletion_vector(file):
            what = f"its vector at {file.content_offset}"
            number = DANGLING_DELETE if self._data_number(file) is None else VECTOR_TOO_OLD
        detail = f"{what} reaches no data file that is live in {_said(self.branches)}"
        if number == VECTOR_TOO_OLD:
            detail = (
                f"{what} has sequence number {entry.sequence_number}, and its data file {file.referenced_data_file!r}, which is "
                f"live in {_said(self.branches)}, the newer one {self._data_number(file)}"
            )
        return Fault(
            number=number,
            where=file.file_path,
            detail=detail,
            snapshot_id=self.snapshot_id,
            facts={**_told(entry, manifest), "refs": [*self.branches], "snapshots_count": 1},
        )

    def _data_number(self, vector: DataFile) -> int | None:
        """The data sequence number of the data file that a vector is for; `None` where it is not live."""
        return self.dangling.least.paths.get(path_digest(str(vector.referenced_data_file)))


def _told(entry: ManifestEntry, manifest: ManifestFile) -> Mapping[str, object]:
    file = entry.data_file
    return {
        "manifest": manifest.manifest_path,
        "file_path": file.file_path,
        "content": int(file.content),
        "content_offset": file.content_offset if is_deletion_vector(file) else None,
        "referenced_data_file": file.referenced_data_file,
        "spec_id": file.spec_id,
        "partition": [None if value is None else str(value) for value in file.partition],
        "sequence_number": entry.sequence_number,
        "record_count": file.record_count,
    }


def _said(names: tuple[str, ...]) -> str:
    return f"branch {names[0]!r}" if len(names) == 1 else f"branches {', '.join(map(repr, names))}"
