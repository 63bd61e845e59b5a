"""Steps of generated histories that change no file: branches and tags, statistics, partitioning, schema and format version."""

from typing import Any

from icekeep.commit.changes.definitions import (
    ChangeStatistics,
    UpdateSchema,
    UpdateSpec,
    UpgradeTable,
)
from icekeep.commit.changes.snapshots import CreateRef, DropRef, FastForwardBranch, ReplaceRef
from icekeep.spec.evolution import AddColumn, AddPartitionField, DropColumn, RemovePartitionField, RenameColumn
from icekeep.spec.metadata import is_ancestor
from icekeep.spec.snapshots import MAIN, PartitionStatisticsFile, Snapshot, SnapshotRef, StatisticsFile
from icekeep.spec.transforms import Void
from icekeep.spec.types import STRING
from kit.reclaim_table import DAY_MS, HOUR_MS, ReclaimTable


class ReclaimReferences(ReclaimTable):
    """A table and those of its steps; one that finds nothing to do does nothing."""

    # References.

    def _line(self) -> str:
        """Main, or now and then another branch, to commit to."""
        others = sorted(name for name, ref in self.metadata.refs.items() if ref.is_branch and name != MAIN)
        if others and self.lot.random() < 0.3:
            self.events["commit to a branch"] += 1
            return self.lot.choice(others)
        return MAIN

    def _any_snapshot(self) -> Snapshot | None:
        """The current one more often than others, as people do it."""
        metadata = self.metadata
        if not metadata.snapshots:
            return None
        current = metadata.current_snapshot
        return current if current and self.lot.random() < 0.5 else self.lot.choice(metadata.snapshots)

    def _ref(self, kind: Any) -> None:
        snapshot = self._any_snapshot()
        if snapshot is None:
            return
        limits: dict[str, int] = {}
        if self.lot.random() < 0.4:
            limits["max_ref_age_ms"] = self.lot.choice((HOUR_MS, 2 * DAY_MS, 6 * DAY_MS))
        if kind == "branch" and self.lot.random() < 0.4:
            limits["min_snapshots_to_keep"] = self.lot.randint(1, 3)
        if kind == "branch" and self.lot.random() < 0.4:
            limits["max_snapshot_age_ms"] = self.lot.choice((1, DAY_MS, 4 * DAY_MS))
        ref = SnapshotRef(snapshot_id=snapshot.snapshot_id, type=kind, **limits)
        self._do(CreateRef(f"{kind}-{self._number()}", ref))
        self.events[f"{kind} with retention" if limits else kind] += 1

    def _branch(self) -> None:
        self._ref("branch")

    def _tag(self) -> None:
        self._ref("tag")

    def _drop_ref(self) -> None:
        names = sorted(self.metadata.refs.keys() - {MAIN})
        if names:
            name = self.lot.choice(names)
            ref = self.metadata.refs[name]
            self._do(DropRef(name=name, type=ref.type, expected_id=ref.snapshot_id))
            self.events["reference dropped"] += 1

    def _move_ref(self) -> None:
        names = sorted(self.metadata.refs.keys() - {MAIN})
        snapshot = self._any_snapshot()
        if not names or snapshot is None:
            return
        name = self.lot.choice(names)
        ref = self.metadata.refs[name]
        if ref.is_branch and is_ancestor(self.metadata, ref.snapshot_id, of=snapshot.snapshot_id):
            self._do(FastForwardBranch(name, snapshot.snapshot_id))
            self.events["branch fast-forwarded"] += 1
            return
        change = ReplaceRef(name=name, type=ref.type, snapshot_id=snapshot.snapshot_id, expected_id=ref.snapshot_id)
        self._do(change)
        self.events["reference replaced"] += 1

    # Definitions and statistics.

    def _statistics(self) -> None:
        """Of one snapshot or of two, which then share one file; or taken away."""
        metadata = self.metadata
        if not metadata.snapshots:
            return
        chosen = self.lot.sample(metadata.snapshots, min(len(metadata.snapshots), self.lot.randint(1, 2)))
        is_of_partitions = self.lot.random() < 0.5
        name = "partition-statistics" if is_of_partitions else "statistics"
        if self.lot.random() < 0.1:
            removals = tuple(s.snapshot_id for s in chosen)
            kind = "partition_removals" if is_of_partitions else "removals"
            self._do(ChangeStatistics(**{kind: removals}))
            self.events["statistics removed"] += 1
            return
        location = f"{metadata.location}/metadata/{name}-{self._number()}.bin"
        size_bytes = self._put(location)
        if len(chosen) > 1:
            self.events[f"shared {name}"] += 1
        self.events[name] += 1
        if is_of_partitions:
            partition_files = tuple(
                PartitionStatisticsFile(
                    snapshot_id=s.snapshot_id, statistics_path=self._seldom(location), file_size_in_bytes=size_bytes
                )
                for s in chosen
            )
            self._do(ChangeStatistics(updates=partition_files))
            return
        files = tuple(
            StatisticsFile(
                snapshot_id=s.snapshot_id,
                statistics_path=self._seldom(location),
                file_size_in_bytes=size_bytes,
                file_footer_size_in_bytes=4,
                blob_metadata=(),
            )
            for s in chosen
        )
        self._do(ChangeStatistics(updates=files))

    def _spec(self) -> None:
        fields = [f.name for f in self.metadata.spec.fields if not isinstance(f.transform, Void)]
        if fields and self.lot.random() < 0.5:
            change: Any = RemovePartitionField(self.lot.choice(fields))
        else:
            change = AddPartitionField(*self.lot.choice((("kind", "identity"), ("id", "bucket[4]"))))
        self._do(UpdateSpec((change,)))
        self.events["spec evolved"] += 1

    def _schema(self) -> None:
        names = [f.name for f in self.metadata.schema.fields if f.name not in ("id", "kind")]
        changes: list[Any] = [AddColumn(f"new{self._number()}", STRING)]
        if names:
            name = self.lot.choice(names)
            changes += [DropColumn(name), RenameColumn(name, f"renamed{self._number()}")]
        self._do(UpdateSchema((self.lot.choice(changes),)))
        self.events["schema evolved"] += 1

    def _upgrade(self) -> None:
        version = self.metadata.format_version
        if version < 3:
            self._do(UpgradeTable(version + 1, str(self.runtime.new_uuid())))
            self.events["format version raised"] += 1
