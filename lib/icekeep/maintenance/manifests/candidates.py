"""A plan that was written before -> its runs of manifests again, or a refusal. Manifests never change: they are there or not.

Which manifests are badly sized or overlap, by what the manifest list says of them; nothing is opened. Pure.

Manifests of one spec and one content, sorted by their partitions and cut, follow one another: each has an interval of
partitions, and two intervals meet at their ends at most. Where that is so and sizes are right, there is nothing to gain.

Which manifests are rewritten: those that a table's list shows to be badly sized or to lie across one another.

The manifests that would come of many entries, told by a survey: how they would be cut, and each part's partitions.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from icekeep.catalog.base import Table
from icekeep.commit.live_files import check_totals
from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import IcekeepError
from icekeep.events import Listener, StepFinished, StepStarted
from icekeep.maintenance.intervals import Intervals, Mask, Places
from icekeep.maintenance.jobs import ENTRY_CPU_MS
from icekeep.maintenance.manifests.records import RunWriter
from icekeep.maintenance.manifests.rules import RewriteRules, manifests_that_match
from icekeep.maintenance.manifests.survey import Weight, cut_weights, survey
from icekeep.maintenance.rewrite.options import WELL_SIZED
from icekeep.maintenance.saved_plans import (
    GROUP,
    REMOVE,
    REWRITE,
    GivenPlan,
    PlanCost,
    PlanLine,
    already,
    delete_file_line,
    hold_decided,
    landed,
    moved,
    of_manifests,
    some_of,
)
from icekeep.planning.spark.session import SparkSource
from icekeep.planning.transcode import PartitionPart, RecordTarget, cluster_key, needs_bounds
from icekeep.spec.manifests.read import lacks_counts
from icekeep.spec.manifests.structs import (
    FieldSummary,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionSummarizer,
)
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.types import FLOATING_TYPES, NestedField, Type
from icekeep.spec.values import value_from_bytes
from icekeep.spelling import counted
from icekeep.storage.base import REQUESTS_AT_ONCE
from icekeep.tables.refs import head_to_commit_to

MANIFEST = "manifest"


class PlannedRun(msgspec.Struct, frozen=True):
    """Manifests that are clustered together, of how many they are to come; of each spec and content there may be some."""

    spec_id: int
    content: ManifestContent
    manifests: tuple[ManifestFile, ...]
    expected_count: int


class GivenManifests:
    """The manifests of a plan: which are clustered together, and which hold nothing and go."""

    def __init__(self, given: GivenPlan) -> None:
        self._given = given
        lines = [*given.lines()]
        self._runs = {line.group: line for line in lines if line.kind == GROUP}
        self._manifests = {line.name: line for line in lines if line.kind == MANIFEST}

    def hold(self, listed: Sequence[ManifestFile], metadata: TableMetadata) -> None:
        """Hold the plan against what the head of a branch lists; manifests without live files, which it only drops, may be gone.

        Raises:
            SafetyError: a manifest is gone.
            AlreadyApplied: all are, and a snapshot says that this plan replaced them.
        """
        there = {one.manifest_path: one.manifest_length for one in listed}
        gone = [name for name, line in self._manifests.items() if there.get(name) != line.size_bytes]
        if len(gone) == len(self._manifests) and landed(self._given, metadata):
            raise already(self._given, metadata)
        gone = [name for name in gone if self._manifests[name].do == REWRITE]
        if not gone:
            hold_decided(self._given, metadata, of_manifests(metadata))
            return
        manifests, are = counted(len(gone), "manifests"), "is" if len(gone) == 1 else "are"
        problem = f"{manifests} to rewrite {are} gone, such as {some_of(gone)}"
        raise moved(self._given, metadata, problem, gone_count=len(gone))

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
            raise moved(self._given, metadata, problem)


def exact_lines(
    runs: Sequence[PlannedRun], empty: Sequence[ManifestFile], removed: Sequence[ManifestEntry]
) -> Iterator[PlanLine]:
    """All that a plan does: each run with its manifests, then those that hold nothing, and the delete files that go."""
    for number, run in enumerate(runs):
        yield PlanLine(
            do=REWRITE,
            kind=GROUP,
            group=number,
            size_bytes=sum(one.manifest_length for one in run.manifests),
            says={
                "spec_id": run.spec_id,
                "content": run.content.name.lower(),
                "expected_manifests_count": run.expected_count,
            },
        )
        for one in run.manifests:
            yield _line(one, REWRITE, number)
    for one in empty:
        yield _line(one, REMOVE, None)
    for entry in removed:
        yield delete_file_line(entry, REMOVE)


def cost_of(runs: Sequence[PlannedRun]) -> PlanCost:
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


def _line(one: ManifestFile, do: str, group: int | None) -> PlanLine:
    return PlanLine(
        do=do,
        kind=MANIFEST,
        name=one.manifest_path,
        group=group,
        size_bytes=one.manifest_length,
        says={"entries_count": one.live_files_count},
    )


_OPEN_BYTES = 512 * 1024
WORTH_COUNT = 0.15
WORTH_COST = 0.2

_FIRST = b""
_LAST = b"\xff"


class ManifestInterval(msgspec.Struct, frozen=True):
    """From where to where a manifest reaches among partitions in the order of sorting, as far as is known for certain.

    A partition at an end may be in the next manifest too. Both ends are one where all files are of one partition.
    """

    lower: Any
    upper: Any

    def overlaps(self, other: "ManifestInterval") -> bool:
        """Whether they share more than an end; manifests of one and the same partition do not, however they were cut."""
        return bool(self.lower < other.upper and other.lower < self.upper)


def intervals(
    manifests: Sequence[ManifestFile], fields: Sequence[NestedField], sort_fields: Sequence[int] | None = None
) -> list[ManifestInterval | None]:
    """The interval of each manifest by its partition summaries, `None` where they do not tell it.

    A manifest of several values of a field may hold any values of the next one with each of them; then the interval is the
    narrowest that it can be, so that manifests which were sorted and cut never seem to overlap.

    Args:
        manifests: of one spec.
        fields: those of the spec's partition type.
        sort_fields: positions of partition fields in the order of sorting, all in order by default; all manifests of a
            table without partitions have the same interval.
    """
    bounds = [_Bounds(field.type) for field in fields]
    order = range(len(fields)) if sort_fields is None else sort_fields
    return [_interval(manifest, bounds, order) for manifest in manifests]


def expected_manifests_count(total_bytes: int, target_bytes: int) -> int:
    """Into how many manifests of even size a run is cut; each has 0.75 to 1.25 of the target, one alone up to 1.5 of it."""
    return max(1, round(total_bytes / target_bytes))


def worth_rewriting(
    manifests: Sequence[ManifestFile],
    known: Sequence[ManifestInterval | None],
    target_bytes: int,
    *,
    header_bytes: int = 0,
) -> list[list[ManifestFile]]:
    """The runs of manifests that are worth being sorted and cut anew, each by itself; all others stay as they are.

    A well-sized manifest that overlaps no other is a wall, and what lies between two walls is a run. It is worth it where
    the manifests would be 15 % fewer, where one is too large, or where a filter on one partition would cost 20 % less.
    Else only the badly sized of the run are put together, if they become fewer and the run is still not worth it then.

    What comes of a run is not worth it again, but for this: where there are several fields to sort by, cutting may show
    an overlap with what was left alone that summaries had hidden. The order of `manifests` does not matter.

    Args:
        manifests: with live files, of one spec and one content.
        known: their intervals; one that is not known overlaps all others; where none is known there is no order.
        target_bytes: the size that a manifest should have.
        header_bytes: how much of each manifest holds no entries; such bytes count for nothing, as cutting does not make
            them fewer. It matters where the target is not much more.
    """
    if not manifests:
        return []
    line = _Line.of(manifests, known, header_bytes)
    chosen = []
    for run in _runs(line, target_bytes):
        if _is_worth_it(run, target_bytes):
            chosen.append(list(run.manifests))
        elif rest := _badly_sized_together(run, target_bytes):
            chosen.append(rest)
    return chosen


class _Bounds:
    """The keys of one field's lowest and highest value, of summaries as they come; a bound is decoded once."""

    def __init__(self, type_: Type) -> None:
        self._type = type_
        self._is_floating = type_ in FLOATING_TYPES
        self._keys: dict[bytes, bytes | None] = {}

    def ends(self, summary: FieldSummary) -> tuple[bytes, bytes] | None:
        """Both ends, `None` where the summary does not tell them."""
        keys = [self._key(bound) for bound in (summary.lower_bound, summary.upper_bound) if bound is not None]
        if len(keys) == 1 or None in keys:
            return None
        found = [key for key in keys if key is not None]
        if found and found[0] > found[1]:
            # Another writer has another order of UUIDs.
            return None
        if summary.contains_null:
            found.append(self._sort_key(None))
        if self._may_hold_nan(summary, found):
            found.append(self._sort_key(float("nan")))
        return (min(found), max(found)) if found else None

    def _may_hold_nan(self, summary: FieldSummary, found: Sequence[bytes]) -> bool:
        # Without any value the files must be of NaN, whether or not the writer knew that it should say so.
        return self._is_floating and (bool(summary.contains_nan) or (summary.contains_nan is None and not found))

    def _key(self, bound: bytes) -> bytes | None:
        if bound not in self._keys:
            try:
                value = value_from_bytes(self._type, bound)
                # NaN is no bound.
                self._keys[bound] = self._sort_key(value) if value == value else None
            except IcekeepError:
                # Bytes that are no value of the type, or a type that has no order.
                self._keys[bound] = None
        return self._keys[bound]

    def _sort_key(self, value: Any) -> bytes:
        return cluster_key(self._type, value)


def _interval(manifest: ManifestFile, bounds: Sequence[_Bounds], order: Sequence[int]) -> ManifestInterval | None:
    summaries = manifest.partitions
    if summaries is None or len(summaries) < len(bounds):
        return None if len(order) else ManifestInterval(_FIRST, _FIRST)
    key = b""
    for position in order:
        ends = bounds[position].ends(summaries[position])
        if ends is None:
            return None
        if ends[0] < ends[1]:
            return ManifestInterval(key + ends[0] + _LAST, key + ends[1] + _FIRST)
        key += ends[0]
    return ManifestInterval(key, key)


class _Line(msgspec.Struct, frozen=True):
    """Manifests in the order of their intervals."""

    manifests: list[ManifestFile]
    lengths: Places
    intervals: Intervals

    @classmethod
    def of(
        cls, manifests: Sequence[ManifestFile], known: Sequence[ManifestInterval | None], header_bytes: int
    ) -> "_Line":
        if all(interval is None for interval in known):
            # What can have no order now will have none when it is rewritten.
            known = [ManifestInterval(_FIRST, _FIRST)] * len(manifests)
        found = Intervals.of([None if one is None else (one.lower, one.upper) for one in known])
        lengths = np.array([max(1, m.manifest_length - header_bytes) for m in manifests], dtype=np.int64)
        places = zip(found.first, found.last, (m.manifest_path for m in manifests), strict=True)
        order = [number for number, _ in sorted(enumerate(places), key=itemgetter(1))]
        return cls(list(manifests), lengths, found).taken(np.array(order))

    def __len__(self) -> int:
        return len(self.manifests)

    @property
    def total_bytes(self) -> int:
        return int(self.lengths.sum())

    def taken(self, numbers: Places) -> "_Line":
        """Some of the manifests, in the order of `numbers`."""
        manifests = [self.manifests[number] for number in numbers]
        return _Line(manifests, self.lengths[numbers], self.intervals.taken(numbers))

    def well_sized(self, target_bytes: int) -> Mask:
        """Those whose size cannot be bettered: one file alone makes a manifest too large that nobody can split."""
        return (self.lengths >= WELL_SIZED[0] * target_bytes) & ~self.too_large(target_bytes)

    def too_large(self, target_bytes: int) -> Mask:
        are_several = np.array([manifest.live_files_count != 1 for manifest in self.manifests], dtype=np.bool_)
        return (self.lengths > WELL_SIZED[1] * target_bytes) & are_several


def _runs(line: _Line, target_bytes: int) -> list[_Line]:
    """What lies between the walls."""
    is_alone = line.intervals.overlapping(np.ones(len(line), dtype=np.int64)) == 1
    is_wall = is_alone & line.well_sized(target_bytes)
    # Of one partition, where there is no order, walls come first, so that they part none of the others.
    order = np.lexsort((~is_wall, line.intervals.last, line.intervals.first))
    runs = []
    for wall, places in groupby(order, key=lambda place: bool(is_wall[place])):
        if not wall:
            runs.append(line.taken(np.fromiter(places, dtype=np.int64)))
    return runs


def _is_worth_it(run: _Line, target_bytes: int) -> bool:
    is_to_be_split = bool(run.too_large(target_bytes).any())
    return is_to_be_split or _gains_in_count(run, target_bytes) or _gains_in_cost(run, target_bytes)


def _gains_in_count(run: _Line, target_bytes: int) -> bool:
    expected = max(1, -(-run.total_bytes // target_bytes))
    return expected < len(run) and expected <= (1 - WORTH_COUNT) * len(run)


def _gains_in_cost(run: _Line, target_bytes: int) -> bool:
    """Whether a filter on one partition of the run, any byte of it as likely as another, would read so much less."""
    now = float(np.average(run.intervals.overlapping(run.lengths + _OPEN_BYTES), weights=run.lengths))
    afterwards = run.total_bytes / expected_manifests_count(run.total_bytes, target_bytes) + _OPEN_BYTES
    return afterwards <= (1 - WORTH_COST) * now


def _badly_sized_together(run: _Line, target_bytes: int) -> list[ManifestFile]:
    """The badly sized of a run where that makes them fewer and leaves a run that still is not worth it; else none."""
    well_sized = run.well_sized(target_bytes)
    rest, staying = run.taken(np.flatnonzero(~well_sized)), run.taken(np.flatnonzero(well_sized))
    if len(rest) < 2 or not len(staying) or not _gains_in_count(rest, target_bytes):
        return []
    # One manifest that reaches from end to end: what is more than one would weigh so much that the run is worth it.
    left = _Line(
        manifests=[*staying.manifests, rest.manifests[0]],
        lengths=np.append(staying.lengths, rest.total_bytes),
        intervals=Intervals(
            np.append(staying.intervals.first, rest.intervals.first.min()),
            np.append(staying.intervals.last, rest.intervals.last.max()),
        ),
    )
    return [] if _is_worth_it(left, target_bytes) else list(rest.manifests)


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
