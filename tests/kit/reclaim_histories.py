"""Generated histories of the files of a table in memory, for tests of what may be deleted: each that metadata names is there.

Their level is files and what leads to them; no file has rows, which `row_histories` are about. A history is a list of steps,
each a kind and a number by which to choose, so that a failing one can be cut down step by step. By turns files are added,
replaced, deleted by rows, put back under another name or spec; references and staged snapshots come and go; and schema,
partitioning and statistics change. All through the commit library, as jobs and engines do it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles, CherryPick, DeleteFiles, OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteFiles, RewriteManifests
from icekeep.commit.changes.snapshots import ExpireSnapshots, RollbackToSnapshot, SetCurrentSnapshot
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import STAGED_WAP_ID
from icekeep.errors import ConflictError, SafetyError, UnsupportedError, UsageError
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.metadata import is_ancestor
from icekeep.spec.properties import data_directory
from icekeep.spec.reach import applied_delete, is_deletion_vector
from icekeep.spec.retention import RetentionPolicy
from icekeep.spec.snapshots import MAIN, Snapshot
from kit.changes import Staged
from kit.choices import Choices
from kit.reclaim_references import ReclaimReferences
from kit.reclaim_table import DATA_ELSEWHERE, DAY_MS, HOUR_MS, METADATA_ELSEWHERE, place

ELSEWHERE = "elsewhere/imported"
"""Below the warehouse, where no table is."""

KINDS = {
    "append": 10,
    "put_back": 5,
    "delete_files": 5,
    "overwrite": 5,
    "rewrite": 5,
    "positions": 6,
    "equality": 3,
    "merge_manifests": 3,
    "stage": 4,
    "publish": 5,
    "branch": 4,
    "tag": 4,
    "drop_ref": 1,
    "move_ref": 2,
    "roll_back": 3,
    "statistics": 5,
    "spec": 3,
    "schema": 2,
    "expire": 1,
    "upgrade": 1,
    "import_files": 2,
    "wait": 2,
}
"""What may happen, and how often compared with the others."""

Steps = Sequence[tuple[str, int]]


def steps_of(number: int, longest: int = 25) -> list[tuple[str, int]]:
    """The steps that follow from a number: 3 to `longest`, most often few."""
    lot = Choices(number)
    count = min(longest, lot.choice((3, 5, 6, 7, 8, 10, 13, 25)))
    kinds = lot.choices(list(KINDS), list(KINDS.values()), k=count - 1)
    return [(kind, lot.getrandbits(31)) for kind in ("append", *kinds)]


def steps() -> st.SearchStrategy[list[tuple[str, int]]]:
    """The same, to be cut down where a test fails."""
    kind = st.sampled_from([kind for kind, weight in KINDS.items() for _ in range(weight)])
    return st.lists(st.tuples(kind, st.integers(0, 2**31)), min_size=3, max_size=25)


class History(ReclaimReferences):
    """A table and what happened to it; every choice follows from the numbers of the steps.

    Attributes:
        events: how often each thing came about, by its name.
        asked: arguments of `expire_snapshots` that suit the table as it is, and its options `keep_writer_progress`
            and `roots`.
    """

    def __init__(self, setting: int, steps: Steps, *, format_version: int | None = None) -> None:
        super().__init__(setting, format_version)
        for kind, number in steps:
            self.step(kind, number)
        self.asked = self._asked()

    @classmethod
    def of(cls, number: int, longest: int = 25) -> "History":
        """The history that follows from a number."""
        return cls(number, steps_of(number, longest))

    def step(self, kind: str, number: int) -> None:
        """One step; one that the rules forbid just now does nothing."""
        self.lot = Choices(number)
        self.runtime.pass_ms(self.lot.choice((1_000, HOUR_MS, HOUR_MS, DAY_MS, 2 * DAY_MS)))
        try:
            getattr(self, f"_{kind}")()
        except (ConflictError, SafetyError, UnsupportedError, UsageError):
            self.events[f"{kind} refused"] += 1

    # Data files.

    def _append(self) -> None:
        summary = {}
        if self.lot.random() < 0.3:
            self.events["writer progress"] += 1
            summary = self._progress(str(len(self.metadata.snapshots) + 1))
        files = tuple(self._new_file() for _ in range(self.lot.randint(1, 3)))
        merges = self.lot.random() < 0.5
        self.events["merging append" if merges else "fast append"] += 1
        self._do(AppendFiles(files=files, branch=self._line(), merges_manifests=merges, summary=summary))

    def _progress(self, number: str) -> dict[str, str]:
        """What a streaming writer notes in the summary of its snapshot."""
        flink = {"flink.job-id": self.lot.choice(("job-a", "job-b")), "flink.max-committed-checkpoint-id": number}
        return self.lot.choice(
            (
                flink,
                {**flink, "flink.operator-id": "sink"},
                {"spark.sql.streaming.queryId": "query", "spark.sql.streaming.epochId": number},
                {"kafka.connect.offsets.control.group": f'{{"0":{number}}}'},
            )
        )

    def _put_back(self) -> None:
        """Add a file again that was removed, perhaps under another name of the same place, or another spec."""
        branch = self._line()
        live = {place(e.data_file.file_path) for e in self._entries(branch)}
        gone = [file for place, file in self.removed.items() if place not in live and file.content is FileContent.DATA]
        if not gone:
            return
        file = self.lot.choice(gone)
        spec_id = self.lot.choice(sorted(self.metadata.specs_by_id))
        if spec_id != file.spec_id:
            self.events["put back under another spec"] += 1
            file = replace(file, spec_id=spec_id, partition=self._partition(spec_id))
        path = self._spelled(file.file_path)
        if path != file.file_path:
            self.events["put back under another spelling"] += 1
        self.events["put back"] += 1
        file = replace(file, file_path=path, first_row_id=None)
        self._do(AppendFiles(files=(file,), branch=branch, merges_manifests=self.lot.random() < 0.5))

    def _delete_files(self) -> None:
        branch = self._line()
        chosen = self._sample(self._entries(branch), 2)
        if chosen:
            paths = frozenset(e.data_file.file_path for e in chosen)
            self._do(DeleteFiles(paths=paths, branch=branch), removing=chosen)
            self.events["delete of files"] += 1

    def _overwrite(self) -> None:
        branch = self._line()
        chosen = self._sample(self._entries(branch), 2)
        if chosen:
            self._do(
                OverwriteFiles(
                    removed=tuple(chosen),
                    added=(self._new_file(),),
                    starting_snapshot_id=self.metadata.refs[branch].snapshot_id,
                    branch=branch,
                ),
                removing=chosen,
            )
            self.events["overwrite"] += 1

    def _rewrite(self) -> None:
        branch = self._line()
        data, deletes = self._entries(branch), self._entries(branch, ManifestContent.DELETES)
        chosen = self._sample(data, 3)
        if not chosen:
            return
        reaching = reaching_deletes(chosen, deletes, self.metadata.specs_by_id)
        gone = self.lot.random() < 0.7
        self._do(
            RewriteFiles(
                removed=tuple(chosen),
                added=(self._new_file(),),
                schema_id=self.metadata.current_schema_id,
                applied_deletes={path: frozenset(map(applied_delete, found)) for path, found in reaching.items()},
                starting_sequence_number=self.metadata.last_sequence_number,
                data_sequence_number=self.metadata.last_sequence_number if self.metadata.format_version > 1 else None,
                remove_dangling=gone,
                branch=branch,
            ),
            removing=chosen,
        )
        self.events["rewrite"] += 1
        if any(reaching.values()):
            self.events["rewrite of files with deletes"] += 1

    def _import_files(self) -> None:
        """Files that lie elsewhere and belong to someone else, as a migration adds them."""
        files = tuple(
            self._new_file(f"{self.warehouse}/{ELSEWHERE}/{self._number():04d}.parquet")
            for _ in range(self.lot.randint(1, 2))
        )
        self._do(AppendFiles(files=files, branch=self._line(), merges_manifests=False))
        self.events["import"] += 1

    # Row-level deletes.

    def _positions(self) -> None:
        """In version 3 as vectors, several of them in one Puffin file."""
        branch = self._line()
        data = [e.data_file for e in self._entries(branch)]
        if self.metadata.format_version == 1 or not data:
            return
        if self.metadata.format_version == 3:
            self._vectors(branch, self.lot.sample(data, min(len(data), self.lot.randint(1, 3))))
            return
        file = self.lot.choice(data)
        deletes = self._delete_file(FileContent.POSITION_DELETES, file)
        if self.lot.random() < 0.5:
            deletes = replace(deletes, referenced_data_file=file.file_path)
        self._delta(branch, (deletes,), named=frozenset({file.file_path}))
        self.events["position deletes"] += 1

    def _vectors(self, branch: str, data: Sequence[DataFile]) -> None:
        paths = {file.file_path for file in data}
        if len(paths) < len(data):
            return
        old = [e for e in self._entries(branch, ManifestContent.DELETES) if e.data_file.referenced_data_file in paths]
        location = f"{data_directory(self.metadata)}/{self._number():04d}-deletes.puffin"
        size_bytes = self._put(location)
        vectors = tuple(
            DataFile(
                file_path=self._spelled(location) if self.lot.random() < 0.1 else location,
                file_format="PUFFIN",
                content=FileContent.POSITION_DELETES,
                spec_id=file.spec_id,
                partition=file.partition,
                record_count=1,
                file_size_in_bytes=size_bytes,
                referenced_data_file=file.file_path,
                content_offset=4 + 40 * n,
                content_size_in_bytes=40,
            )
            for n, file in enumerate(data)
        )
        self._delta(branch, vectors, removed_deletes=tuple(old))
        self.events["deletion vectors"] += 1
        if len(vectors) > 1:
            self.events["vectors that share a Puffin file"] += 1
        if any(is_deletion_vector(e.data_file) for e in old):
            self.events["vector in place of another"] += 1

    def _equality(self) -> None:
        branch = self._line()
        data = [e.data_file for e in self._entries(branch)]
        if self.metadata.format_version > 1 and data:
            deletes = self._delete_file(FileContent.EQUALITY_DELETES, self.lot.choice(data))
            self._delta(branch, (replace(deletes, equality_ids=(1,)),))
            self.events["equality deletes"] += 1

    def _delta(self, branch: str, deletes: tuple[DataFile, ...], **facts: Any) -> None:
        start = self.metadata.refs[branch].snapshot_id
        self._do(RowDelta(added_deletes=deletes, starting_snapshot_id=start, branch=branch, **facts))

    def _delete_file(self, content: FileContent, like: DataFile) -> DataFile:
        location = f"{data_directory(self.metadata)}/{self._number():04d}-deletes.parquet"
        return DataFile(
            file_path=location,
            file_format="PARQUET",
            content=content,
            spec_id=like.spec_id,
            partition=like.partition,
            record_count=1,
            file_size_in_bytes=self._put(location),
        )

    # Snapshots.

    def _merge_manifests(self) -> None:
        """Put the manifests of one spec and content together, as `rewrite_manifests` does."""
        branch = self._line()
        head = self.metadata.head(branch)
        if head is None:
            return
        reader = ManifestReader(self.storage)
        by_kind: dict[tuple[int, ManifestContent], list[ManifestFile]] = {}
        for manifest in reader.manifests(head):
            by_kind.setdefault((manifest.partition_spec_id, manifest.content), []).append(manifest)
        if not by_kind:
            return
        (spec_id, content), manifests = self.lot.choice(sorted(by_kind.items(), key=lambda item: item[0]))
        entries = [e for m in manifests for e in reader.entries(m, self.metadata) if e.is_live]
        added = self._manifest(entries, spec_id, content)
        version = self.metadata.format_version
        change = RewriteManifests(replaced=tuple(manifests), added=added, format_version=version, branch=branch)
        self._do(change)
        self.events["manifests rewritten"] += 1

    def _manifest(
        self, entries: Iterable[ManifestEntry], spec_id: int, content: ManifestContent
    ) -> tuple[ManifestFile, ...]:
        metadata = self.metadata
        builder = ManifestBuilder(
            f"{metadata.location}/metadata/optimized-m-{self._number()}.avro",
            EntryEncoder(metadata.partition_type(spec_id), metadata.format_version),
            metadata.specs_by_id[spec_id],
            metadata.schema,
            format_version=metadata.format_version,
            content=content,
        )
        entries = list(entries)
        if not entries:
            return ()
        for entry in entries:
            builder.add(replace(entry, status=Status.EXISTING))
        data, manifest = builder.finish(None)
        self.storage.create(builder.location, data)
        return (manifest,)

    def _stage(self) -> None:
        summary = {STAGED_WAP_ID: f"wap-{self._number()}"} if self.lot.random() < 0.7 else {}
        files = (self._new_file(),)
        chosen = self._sample(self._entries(MAIN), 1)
        if chosen and self.lot.random() < 0.3:
            change: Any = OverwriteFiles(
                removed=tuple(chosen),
                added=files,
                starting_snapshot_id=self.metadata.current_snapshot_id,
                summary={**summary, "replace-partitions": "true"},
            )
        else:
            change = AppendFiles(files=files, summary=summary, merges_manifests=self.lot.random() < 0.3)
        self._do(Staged(change))
        self.events["staged"] += 1

    def _publish(self) -> None:
        metadata = self.metadata
        others = [s for s in metadata.snapshots if not self._is_in_main(s)]
        if others:
            picked = self.lot.choice(others)
            self._do(CherryPick(picked.snapshot_id))
            was_moved = self.metadata.current_snapshot_id == picked.snapshot_id
            self.events["published as it is" if was_moved else "cherry-picked"] += 1

    def _is_in_main(self, snapshot: Snapshot) -> bool:
        return is_ancestor(self.metadata, snapshot.snapshot_id, of=self.metadata.current_snapshot_id)

    def _roll_back(self) -> None:
        metadata, current = self.metadata, self.metadata.current_snapshot_id
        older = [s.snapshot_id for s in metadata.ancestors(current) if s.snapshot_id != current]
        others = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id != current]
        if older and self.lot.random() < 0.7:
            self._do(RollbackToSnapshot(snapshot_id=self.lot.choice(older[:3]), expected_id=current))
            self.events["rollback"] += 1
        elif others:
            self._do(SetCurrentSnapshot(snapshot_id=self.lot.choice(others), expected_id=current))
            self.events["set current"] += 1

    def _expire(self) -> None:
        """Snapshots leave, and their files stay: as other tools do it that delete nothing."""
        policy = RetentionPolicy(older_than_ms=self.runtime.now_ms() - DAY_MS, retain_last=self.lot.randint(1, 3))
        before = len(self.metadata.snapshots)
        self._do(ExpireSnapshots(policy=policy, now_ms=self.runtime.now_ms()))
        if len(self.metadata.snapshots) < before:
            self.events["expired before"] += 1

    def _wait(self) -> None:
        self.runtime.pass_ms(self.lot.choice((2 * DAY_MS, 6 * DAY_MS)))

    def _asked(self) -> dict[str, Any]:
        self.runtime.pass_ms(self.lot.choice((1_000, DAY_MS, 6 * DAY_MS)))
        now_ms = self.runtime.now_ms()
        moments = [now_ms, *(s.timestamp_ms + 1 for s in self.metadata.snapshots)]
        asked: dict[str, Any] = {"keep_writer_progress": self.lot.choice(("0", "1d", "7d"))}
        if self.lot.random() < 0.7:
            asked["older_than"] = now_ms if self.lot.random() < 0.5 else self.lot.choice(moments)
        if self.lot.random() < 0.5:
            asked["retain_last"] = self.lot.randint(1, 3)
        heads = {ref.snapshot_id for ref in self.metadata.refs.values()}
        others = [s.snapshot_id for s in self.metadata.snapshots if s.snapshot_id not in heads]
        if others and self.lot.random() < 0.2:
            self.events["snapshots named"] += 1
            asked["snapshot_ids"] = (self.lot.choice(others),)
        if self.lot.random() < 0.2:
            asked["clean_expired_metadata"] = True
        if self.lot.random() < 0.3:
            self.events["root allowed"] += 1
            named = (ELSEWHERE, *self.lot.sample((DATA_ELSEWHERE, METADATA_ELSEWHERE), self.lot.randint(0, 2)))
            asked["roots"] = ",".join(f"{self.warehouse}/{name}" for name in named)
        return asked
