"""Which manifests are rewritten: those that a table's list shows to be badly sized or to lie across one another."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.live_files import check_totals
from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.commit.manifests import ManifestReader
from icekeep.events import Listener, StepFinished, StepStarted
from icekeep.maintenance.groups.file_sizes import WELL_SIZED
from icekeep.maintenance.manifests.given_manifests import GivenManifests
from icekeep.maintenance.manifests.matching import manifests_that_match
from icekeep.maintenance.manifests.ranges import (
    WORTH_COST,
    WORTH_COUNT,
    ManifestInterval,
    expected_manifests_count,
    intervals,
    worth_rewriting,
)
from icekeep.maintenance.manifests.rules import RewriteRules
from icekeep.maintenance.manifests.survey import survey
from icekeep.maintenance.manifests.writing import RunWriter
from icekeep.planning.spark.session import SparkSource
from icekeep.planning.transcode import PartitionPart, RecordTarget, needs_bounds
from icekeep.spec.manifests.read import lacks_counts
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.many import REQUESTS_AT_ONCE
from icekeep.tables.refs import head_to_commit_to

_CHOOSING = "choosing manifests"


class ManifestRun(msgspec.Struct, frozen=True, kw_only=True):
    """Manifests that are clustered and cut together, the oldest first.

    `expected_count` is how many come of them, if their live entries take as many bytes as now.
    """

    manifests: tuple[ManifestFile, ...]
    target: RecordTarget
    expected_count: int


class ManifestGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests of one partition spec and content.

    Attributes:
        listed: all of the snapshot that may have live files.
        runs: what is rewritten of them.
        empty: those without a live file, which are left out.
        left_alone_count: those that are badly sized or lie across others, but have what rewriting would lose.
    """

    spec_id: int
    content: ManifestContent
    listed: tuple[ManifestFile, ...]
    runs: tuple[ManifestRun, ...] = ()
    empty: tuple[ManifestFile, ...] = ()
    left_alone_count: int = 0

    @property
    def rewritten(self) -> list[ManifestFile]:
        """The manifests of all runs."""
        return [manifest for run in self.runs for manifest in run.manifests]


class ManifestCandidates(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to do; `snapshot_id` is the head of the branch, `listed` all that it lists."""

    snapshot_id: int | None
    target_bytes: int
    groups: tuple[ManifestGroup, ...]
    listed: tuple[ManifestFile, ...] = ()

    @property
    def replaced(self) -> list[ManifestFile]:
        """The manifests that go."""
        return [manifest for group in self.groups for manifest in (*group.rewritten, *group.empty)]


def tell_of_none(chosen: ManifestCandidates, listener: Listener) -> None:
    """Say why nothing is rewritten, where there are manifests and nothing is."""
    count = sum(len(group.listed) for group in chosen.groups)
    if chosen.replaced or not count:
        return
    least, most = (round(share * chosen.target_bytes) for share in WELL_SIZED)
    listener.on(StepStarted(_CHOOSING))
    note = (
        f"none of {count:,} is rewritten: one of several entries is too large above {most:,} bytes, one too small below "
        f"{least:,}, and no others are put together than would be {WORTH_COUNT:.0%} fewer or make a filter on one partition "
        f"{WORTH_COST:.0%} cheaper"
    )
    listener.on(StepFinished(_CHOOSING, note))


def candidates(table: Table, rules: RewriteRules, spark: SparkSource, now_ms: int) -> ManifestCandidates:
    """Choose from the list of a branch's head. Few bytes of manifests are read, unless columns' bounds are asked for.

    Raises:
        ExpressionError: `where` is no filter over manifests.
        NotFoundError: the table has no such branch.
        UsageError: the branch is a tag.
        SafetyError: the plan that was given does not hold any more.
        InvalidTableError: the list is not whole by the totals of its snapshot.
    """
    metadata = table.metadata
    target_bytes = manifest_target_bytes(metadata)
    snapshot = head_to_commit_to(metadata, rules.branch)
    reader = ManifestReader(table.storage)
    listed = [] if snapshot is None else reader.manifests(snapshot)
    listed = [reader.completed(m, metadata) if lacks_counts(m) else m for m in listed]
    if snapshot is not None:
        check_totals(listed, snapshot)
    matching = manifests_that_match(rules.where, listed, metadata, now_ms)
    chooser = _Chooser(table, rules, spark, target_bytes, reader)
    kinds = [(spec_id, content) for spec_id in rules.spec_ids for content in ManifestContent]
    if rules.given is None:
        groups = [chooser.group(spec_id, content, listed, matching) for spec_id, content in kinds]
    else:
        given = GivenManifests(rules.given)
        given.hold(listed, metadata)
        groups = [chooser.given_group(spec_id, content, listed, given) for spec_id, content in kinds]
    return ManifestCandidates(
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        target_bytes=target_bytes,
        groups=tuple(group for group in groups if group.listed or group.empty),
        listed=tuple(listed),
    )


class _Chooser:
    def __init__(
        self,
        table: Table,
        rules: RewriteRules,
        spark: SparkSource,
        target_bytes: int,
        reader: ManifestReader,
    ) -> None:
        self._table, self._rules, self._spark = table, rules, spark
        self._target_bytes, self._reader = target_bytes, reader

    def group(
        self,
        spec_id: int,
        content: ManifestContent,
        listed: Sequence[ManifestFile],
        matching: Sequence[ManifestFile],
    ) -> ManifestGroup:
        """What to do with the manifests of one spec and content."""
        metadata = self._table.metadata
        own, asked = (
            [m for m in some if m.partition_spec_id == spec_id and m.content is content] for some in (listed, matching)
        )
        live = [m for m in asked if m.may_have_live_files]
        target = self._target(metadata, spec_id, content)
        runs, left_alone = self._runs(live, spec_id, target), 0
        if runs and metadata.specs_by_id[spec_id].has_unknown_transform:
            left_alone, runs = sum(map(len, runs)), []
        elif runs:
            known = self._known(runs)
            left_alone = sum(map(len, runs)) - len(known)
            if left_alone:
                # Each run by itself: together they would reach across the walls between them.
                paths = {m.manifest_path for m in known}
                rests = [[m for m in run if m.manifest_path in paths] for run in runs]
                runs = [again for rest in rests for again in self._runs(rest, spec_id, target)]
        places = {manifest.manifest_path: place for place, manifest in enumerate(listed)}
        return ManifestGroup(
            spec_id=spec_id,
            content=content,
            listed=tuple(m for m in own if m.may_have_live_files),
            runs=tuple(self._run(run, spec_id, target, places) for run in runs),
            empty=tuple(m for m in asked if not m.may_have_live_files),
            left_alone_count=left_alone,
        )

    def given_group(
        self, spec_id: int, content: ManifestContent, listed: Sequence[ManifestFile], given: GivenManifests
    ) -> ManifestGroup:
        """What a plan that was given does with the manifests of one spec and content."""
        metadata = self._table.metadata
        own = [m for m in listed if m.partition_spec_id == spec_id and m.content is content]
        target = self._target(metadata, spec_id, content)
        places = {manifest.manifest_path: place for place, manifest in enumerate(listed)}
        runs = []
        for number, manifests in given.runs(own):
            runs.append(self._run(manifests, spec_id, target, places))
            given.expect(number, runs[-1].expected_count, metadata)
        return ManifestGroup(
            spec_id=spec_id,
            content=content,
            listed=tuple(m for m in own if m.may_have_live_files),
            runs=tuple(runs),
            empty=tuple(given.empty(own)),
        )

    def _target(self, metadata: TableMetadata, spec_id: int, content: ManifestContent) -> RecordTarget:
        return RecordTarget(
            partition=metadata.partition_type(spec_id),
            format_version=metadata.format_version,
            sort=self._rules.sort_of(metadata, spec_id, content),
        )

    def _runs(self, live: Sequence[ManifestFile], spec_id: int, target: RecordTarget) -> list[list[ManifestFile]]:
        known = self._intervals(live, spec_id, target)
        weighed = [_without_deleted(manifest) for manifest in live]
        runs = worth_rewriting(weighed, known, self._target_bytes, header_bytes=self._header_bytes(spec_id, target))
        by_path = {manifest.manifest_path: manifest for manifest in live}
        return [[by_path[manifest.manifest_path] for manifest in run] for run in runs]

    def _run(
        self, manifests: Sequence[ManifestFile], spec_id: int, target: RecordTarget, places: Mapping[str, int]
    ) -> ManifestRun:
        header_bytes = self._header_bytes(spec_id, target)
        records_bytes = sum(max(1, _without_deleted(m).manifest_length - header_bytes) for m in manifests)
        return ManifestRun(
            manifests=tuple(sorted(manifests, key=lambda m: -places[m.manifest_path])),
            target=target,
            expected_count=expected_manifests_count(records_bytes, self._target_bytes),
        )

    def _header_bytes(self, spec_id: int, target: RecordTarget) -> int:
        table = self._table
        content = ManifestContent.DATA
        return RunWriter.of(table.metadata, spec_id, content, target, self._target_bytes, table.storage).header_bytes

    def _intervals(
        self, live: Sequence[ManifestFile], spec_id: int, target: RecordTarget
    ) -> Sequence[ManifestInterval | None]:
        """How far each reaches: by its partition summaries, or by its entries where their bounds matter too."""
        if not needs_bounds(target.sort):
            order = [part.index for part in target.sort if isinstance(part, PartitionPart)]
            return intervals(live, target.partition.fields, order)
        if len(live) < 2:
            return [None] * len(live)
        ends = survey(live, spec_id, target, self._table.storage, self._spark).ends
        return [ManifestInterval(*ends[m.manifest_path]) if m.manifest_path in ends else None for m in live]

    def _known(self, runs: Sequence[Sequence[ManifestFile]]) -> list[ManifestFile]:
        """The manifests without fields that are not known."""
        manifests = [manifest for run in runs for manifest in run]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            headers = [*pool.map(self._reader.header, manifests)]
        return [m for m, header in zip(manifests, headers, strict=True) if not header.unknown_field_ids]


def _without_deleted(manifest: ManifestFile) -> ManifestFile:
    """A row with the length that the manifest would have without its entries of deleted files."""
    live, deleted = manifest.live_files_count or 0, manifest.deleted_files_count or 0
    if live <= 0 or deleted <= 0:
        return manifest
    return msgspec.structs.replace(manifest, manifest_length=manifest.manifest_length * live // (live + deleted))
