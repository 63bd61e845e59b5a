"""What `icekeep check` prints for people: what was found, where, and what to do, each in lines that fit a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from icekeep.maintenance.check.faults import MAX_EXAMPLES, Gap
from icekeep.maintenance.check.job import CheckResult, FaultsFound
from icekeep.maintenance.repair.planner import REPAIRED
from icekeep.operations.shown.commands import CommandsOn
from icekeep.spec.snapshots import MAIN
from icekeep.spec.times import format_moment, format_time

_EXAMPLES = 5
"""Of each class; `--output json` has more."""


def check_shown(result: CheckResult, commands: CommandsOn | None = None) -> Mapping[str, Any]:
    """The values and rows that are printed of a check; without `commands` not what to do next."""
    shown: dict[str, Any] = {
        "is_deep": result.is_deep,
        "snapshots_count": result.snapshots_count,
        "manifests_count": result.manifests_count,
        "entries_count": result.entries_count,
        "faults_count": result.faults_count,
        "not_checked_count": result.not_checked_count,
        "elapsed_ms": result.elapsed_ms,
    }
    for name, found in (("faults", result.faults), ("notices", result.notices)):
        if found:
            shown[name] = [_row(one) for one in found]
            shown[f"where_{name}_are"] = [line for one in found for line in _places(one)]
            shown[f"what_{name}_do"] = [line for one in found for line in _meaning(one)]
    everything = (*result.faults, *result.notices)
    numbers = sorted({one.fault_id for one in everything if not one.is_only_older} & REPAIRED)
    if commands is not None and any(one.is_only_older for one in everything):
        shown["to_check"] = [commands("check", *(["--deep"] if result.is_deep else []), "--ref", MAIN)]
    if numbers and commands is not None:
        shown["to_mend"] = [commands("repair", "--fault", ",".join(map(str, numbers)), "--dry-run")]
    if result.sound_metadata:
        shown["sound_metadata"] = [
            f"{one.metadata_location} of {format_time(one.timestamp_ms)}" for one in result.sound_metadata
        ]
    if result.not_checked:
        more = result.not_checked_count - len(result.not_checked)
        shown["not_checked"] = [*_gaps(result.not_checked), *([f"... and {more:,} more"] if more > 0 else [])]
    return shown


def _row(one: FaultsFound) -> dict[str, Any]:
    since = "" if one.since_timestamp_ms is None else format_moment(one.since_timestamp_ms)
    return {
        "fault_id": one.fault_id,
        "name": one.name,
        "faults_count": one.faults_count,
        "since_snapshot_id": one.since_snapshot_id,
        "since": since,
        "made_by": None if one.made_by is None else one.made_by.partition(",")[0],
    }


def _places(one: FaultsFound) -> Iterable[str]:
    # All that was asked for is printed.
    shown = one.examples if len(one.examples) > MAX_EXAMPLES else one.examples[:_EXAMPLES]
    for example in shown:
        yield f"{one.fault_id} {example.where}: {example.detail}"
    more = one.faults_count - len(shown)
    if more:
        yield f"{one.fault_id} ... and {more:,} more"


def _meaning(one: FaultsFound) -> Sequence[str]:
    return f"{one.fault_id} readers: {one.readers}", f"{one.fault_id} what to do: {one.mend}"


def _gaps(gaps: Sequence[Gap]) -> Sequence[str]:
    return [f"{gap.what}: {gap.why}" for gap in gaps]
