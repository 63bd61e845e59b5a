"""A plan that was written before -> its runs of manifests again, or a refusal. Manifests never change: they are there or not."""

from collections.abc import Iterator, Sequence

import msgspec

from icekeep.maintenance.deciding import hold_decided, of_manifests
from icekeep.maintenance.exact_plans import (
    GROUP,
    REMOVE,
    REWRITE,
    GivenPlan,
    PlanCost,
    PlanLine,
    already,
    delete_file_line,
    landed,
    moved,
    some_of,
)
from icekeep.maintenance.rates import ENTRY_CPU_MS
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spelling import counted

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
