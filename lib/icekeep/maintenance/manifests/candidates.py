"""Which manifests are rewritten: those that a table's list shows to be badly sized or to lie across one another.

A saved plan names them instead. Manifests never change: they are there or not.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.live_files import totals_agree
from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.commit.manifests import ManifestReader
from icekeep.events import Listener, StepFinished, StepStarted
from icekeep.maintenance.jobs import ENTRY_CPU_MS
from icekeep.maintenance.manifests.ranges import (
    WORTH_COST,
    WORTH_COUNT,
    ManifestInterval,
    expected_manifests_count,
    intervals,
    worth_rewriting,
)
from icekeep.maintenance.manifests.records import RunWriter
from icekeep.maintenance.manifests.rules import RewriteRules, manifests_that_match
from icekeep.maintenance.manifests.survey import Weight, cut_weights, survey
from icekeep.maintenance.plans import GROUP, REMOVE, REWRITE, PlanCost, PlanLine, SavedPlan
from icekeep.maintenance.preconditions import (
    already_applied,
    check_decided,
    delete_file_line,
    first_of,
    landed,
    moved,
    of_manifests,
)
from icekeep.maintenance.rewrite.options import WELL_SIZED
from icekeep.planning.spark.session import SparkSource
from icekeep.planning.transcode import PartitionPart, RecordTarget, needs_bounds
from icekeep.spec.manifests.read import lacks_counts
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile, PartitionSummarizer
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.metadata import TableMetadata
from icekeep.spelling import counted
from icekeep.storage.base import REQUESTS_AT_ONCE
from icekeep.tables.refs import head_to_commit_to

MANIFEST = "manifest"


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


class SavedManifests:
    """The manifests of a saved plan: which are clustered together, and which hold nothing and go."""

    def __init__(self, saved: SavedPlan) -> None:
        self._saved = saved
        lines = [*saved.lines()]
        self._runs = {line.group: line for line in lines if line.kind == GROUP}
        self._manifests = {line.name: line for line in lines if line.kind == MANIFEST}

    def check(self, listed: Sequence[ManifestFile], metadata: TableMetadata) -> None:
        """Check the plan against what the head of a branch lists; manifests without live files, which it only drops, may be gone.

        Raises:
            SafetyError: a manifest is gone.
            AlreadyApplied: all are, and a snapshot says that this plan replaced them.
        """
        there = {one.manifest_path: one.manifest_length for one in listed}
        gone = [name for name, line in self._manifests.items() if there.get(name) != line.size_bytes]
        if len(gone) == len(self._manifests) and landed(self._saved, metadata):
            raise already_applied(self._saved, metadata)
        gone = [name for name in gone if self._manifests[name].do == REWRITE]
        if not gone:
            check_decided(self._saved, metadata, of_manifests(metadata))
            return
        manifests, are = counted(len(gone), "manifests"), "is" if len(gone) == 1 else "are"
        problem = f"{manifests} to rewrite {are} gone, such as {first_of(gone)}"
        raise moved(self._saved, metadata, problem, gone_count=len(gone))

    def runs(self, some: Sequence[ManifestFile]) -> list[tuple[int, list[ManifestFile]]]:
        """Of some manifests, of one spec and content, those that are clustered, by the number of their run."""
        found: dict[int, list[ManifestFile]] = {number: [] for number in self._runs if number is not None}
        for one in some:
            line = self._manifests.get(one.manifest_path)
            if line is not None and line.group is not None:
                found[line.group].append(one)
        return [(number, run) for number, run in found.items() if run]

    def empty(self, some: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Of some manifests those that go, since no live file is in them."""
        lines = ((one, self._manifests.get(one.manifest_path)) for one in some)
        return [one for one, line in lines if line is not None and line.do == REMOVE]

    def expect(self, number: int, expected_count: int, metadata: TableMetadata) -> None:
        """Raise `SafetyError` where another number of manifests would come of a run than was planned."""
        planned = self._runs[number].says.get("expected_manifests_count")
        if planned != expected_count:
            problem = f"{counted(expected_count, 'manifests')} would come of group {number}, and {planned} were planned"
            raise moved(self._saved, metadata, problem)


def exact_lines(
    runs: Sequence[tuple[ManifestGroup, ManifestRun]], empty: Sequence[ManifestFile], removed: Sequence[ManifestEntry]
) -> Iterator[PlanLine]:
    """All that a plan does: each run with its manifests, then those that hold nothing, and the delete files that go."""
    for number, (group, run) in enumerate(runs):
        yield PlanLine(
            do=REWRITE,
            kind=GROUP,
            group=number,
            size_bytes=sum(one.manifest_length for one in run.manifests),
            says={
                "spec_id": group.spec_id,
                "content": group.content.name.lower(),
                "expected_manifests_count": run.expected_count,
            },
        )
        yield from (_line(one, REWRITE, number) for one in run.manifests)
    yield from (_line(one, REMOVE, None) for one in empty)
    yield from (delete_file_line(entry, REMOVE) for entry in removed)


def _line(one: ManifestFile, do: str, group: int | None) -> PlanLine:
    return PlanLine(
        do=do,
        kind=MANIFEST,
        name=one.manifest_path,
        group=group,
        size_bytes=one.manifest_length,
        says={"entries_count": one.live_files_count},
    )


def cost_of(runs: Sequence[ManifestRun]) -> PlanCost:
    """What a plan takes: manifests are read once, and about as many bytes written; a list and metadata come with it."""
    manifests = [one for run in runs for one in run.manifests]
    size = sum(one.manifest_length for one in manifests)
    entries_count = sum((one.live_files_count or 0) + (one.deleted_files_count or 0) for one in manifests)
    expected_count = sum(run.expected_count for run in runs)
    return PlanCost(
        read_bytes=size,
        written_bytes=size,
        requests_count=len(manifests) + expected_count + 2 if manifests else 0,
        cpu_ms=round(entries_count * ENTRY_CPU_MS),
    )


_CHOOSING = "choosing manifests"


def report_none_chosen(chosen: ManifestCandidates, listener: Listener) -> None:
    """Say why nothing is rewritten, if there are manifests."""
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
    """Choose from the list of a branch's head. Few bytes of manifests are read, unless columns' bounds are asked for."""
    metadata = table.metadata
    snapshot = head_to_commit_to(metadata, rules.branch)
    reader = ManifestReader(table.storage)
    listed = [] if snapshot is None else reader.manifests(snapshot)
    listed = [reader.completed(m, metadata) if lacks_counts(m) else m for m in listed]
    if snapshot is not None:
        totals_agree(listed, snapshot)
    matching = manifests_that_match(rules.where, listed, metadata, now_ms)
    chooser = _Chooser(table, rules, spark, reader, listed)
    kinds = [(spec_id, content) for spec_id in rules.spec_ids for content in ManifestContent]
    if rules.saved is None:
        groups = [chooser.group(spec_id, content, matching) for spec_id, content in kinds]
    else:
        saved = SavedManifests(rules.saved)
        saved.check(listed, metadata)
        groups = [chooser.saved_group(spec_id, content, saved) for spec_id, content in kinds]
    return ManifestCandidates(
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        target_bytes=manifest_target_bytes(metadata),
        groups=tuple(group for group in groups if group.listed or group.empty),
        listed=tuple(listed),
    )


class _Chooser:
    """Chooses among the manifests that a branch's head lists."""

    def __init__(
        self, table: Table, rules: RewriteRules, spark: SparkSource, reader: ManifestReader, listed: list[ManifestFile]
    ) -> None:
        self._table, self._metadata, self._rules, self._spark = table, table.metadata, rules, spark
        self._reader, self._listed = reader, listed
        self._target_bytes = manifest_target_bytes(table.metadata)
        self._places = {manifest.manifest_path: place for place, manifest in enumerate(listed)}

    def group(self, spec_id: int, content: ManifestContent, matching: Sequence[ManifestFile]) -> ManifestGroup:
        """What to do with the manifests of one spec and content."""
        own = [m for m in self._listed if m.partition_spec_id == spec_id and m.content is content]
        asked = [m for m in matching if m.partition_spec_id == spec_id and m.content is content]
        target = self._target(spec_id, content)
        runs, left_alone = self._runs([m for m in asked if m.may_have_live_files], spec_id, target), 0
        if runs and self._metadata.specs_by_id[spec_id].has_unknown_transform:
            left_alone, runs = sum(map(len, runs)), []
        elif runs:
            known = self._without_unknown_fields(runs)
            left_alone = sum(map(len, runs)) - len(known)
            if left_alone:
                # Each run by itself: together they would reach across the walls between them.
                rests = [[m for m in run if m.manifest_path in known] for run in runs]
                runs = [again for rest in rests for again in self._runs(rest, spec_id, target)]
        return ManifestGroup(
            spec_id=spec_id,
            content=content,
            listed=tuple(m for m in own if m.may_have_live_files),
            runs=tuple(self._run(run, spec_id, target) for run in runs),
            empty=tuple(m for m in asked if not m.may_have_live_files),
            left_alone_count=left_alone,
        )

    def saved_group(self, spec_id: int, content: ManifestContent, saved: SavedManifests) -> ManifestGroup:
        """What a saved plan does with the manifests of one spec and content."""
        own = [m for m in self._listed if m.partition_spec_id == spec_id and m.content is content]
        target = self._target(spec_id, content)
        runs = []
        for number, manifests in saved.runs(own):
            runs.append(self._run(manifests, spec_id, target))
            saved.expect(number, runs[-1].expected_count, self._metadata)
        return ManifestGroup(
            spec_id=spec_id,
            content=content,
            listed=tuple(m for m in own if m.may_have_live_files),
            runs=tuple(runs),
            empty=tuple(saved.empty(own)),
        )

    def _target(self, spec_id: int, content: ManifestContent) -> RecordTarget:
        metadata = self._metadata
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

    def _run(self, manifests: Sequence[ManifestFile], spec_id: int, target: RecordTarget) -> ManifestRun:
        header_bytes = self._header_bytes(spec_id, target)
        records_bytes = sum(max(1, _without_deleted(m).manifest_length - header_bytes) for m in manifests)
        return ManifestRun(
            manifests=tuple(sorted(manifests, key=lambda m: -self._places[m.manifest_path])),
            target=target,
            expected_count=expected_manifests_count(records_bytes, self._target_bytes),
        )

    def _header_bytes(self, spec_id: int, target: RecordTarget) -> int:
        content, storage = ManifestContent.DATA, self._table.storage
        return RunWriter.of(self._metadata, spec_id, content, target, self._target_bytes, storage).header_bytes

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

    def _without_unknown_fields(self, runs: Sequence[Sequence[ManifestFile]]) -> set[str]:
        """The paths of the manifests that have no fields which are not known."""
        manifests = [manifest for run in runs for manifest in run]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            headers = pool.map(self._reader.header, manifests)
            pairs = zip(manifests, headers, strict=True)
            return {m.manifest_path for m, header in pairs if not header.unknown_field_ids}


def _without_deleted(manifest: ManifestFile) -> ManifestFile:
    """A row with the length that the manifest would have without its entries of deleted files."""
    live, deleted = manifest.live_files_count or 0, manifest.deleted_files_count or 0
    if live <= 0 or deleted <= 0:
        return manifest
    return msgspec.structs.replace(manifest, manifest_length=manifest.manifest_length * live // (live + deleted))


def expected_manifests(group: ManifestGroup, run: ManifestRun, weights: Sequence[Weight]) -> list[ManifestFile]:
    """Manifests without paths, of lengths as the old ones let expect; `weights` are those of the run's entries."""
    stored_bytes = sum(m.manifest_length for m in run.manifests)
    parts = cut_weights(weights, run.expected_count)
    entries_count = max(1, sum(weight.count for part in parts for weight in part))
    codec = PartitionCodec(run.target.partition)
    expected = []
    for part in parts:
        summarizer = PartitionSummarizer([field.type for field in run.target.partition.fields])
        for key in {weight.partition for weight in part}:
            summarizer.add(codec.decode(key))
        count = sum(weight.count for weight in part)
        expected.append(
            ManifestFile(
                manifest_path="",
                manifest_length=stored_bytes * count // entries_count,
                partition_spec_id=group.spec_id,
                added_snapshot_id=None,
                content=group.content,
                added_files_count=0,
                existing_files_count=count,
                deleted_files_count=0,
                partitions=summarizer.summaries(),
            )
        )
    return expected
