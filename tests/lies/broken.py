"""The library with one of its doubts taken back: each of these a lie must show, as lost rows or as a fault that was not there.

A mutant is a context manager: within it the library believes what its docstring says.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple

import pyarrow as pa

from icekeep.commit import dangling, live_files
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes import snapshots as expire_snapshots
from icekeep.formats import reader as read
from icekeep.formats.arrow.schema import has_ids
from icekeep.maintenance.manifests import candidates
from icekeep.planning import deletes as planned_deletes
from icekeep.planning.scan import plan
from icekeep.spec import matched_deletes, reach
from simulation.replacing import replaced

NUMBERS_MAX = 60
"""How many lies of a kind are tried for one that shows a mutant."""


class Hunt(NamedTuple):
    """Which kind of lie shows a mutant, by its name in `lying`, under which job, and a number that has shown it.

    The number is tried first; a change to how tables are generated may make it show nothing.
    """

    kind: str
    job: str
    at: int = 0


def counts_of_a_list() -> AbstractContextManager[Any]:
    """A manifest that the manifest list calls empty has no live file, whatever the summary counts."""
    unchecked = ExitStack()
    for module in (live_files, plan, candidates):
        unchecked.enter_context(replaced(module, "totals_agree", lambda rows, snapshot: True))
    unchecked.enter_context(replaced(Attempt, "check_counts", lambda self, manifests: None))
    return unchecked


def min_numbers_of_a_list() -> AbstractContextManager[Any]:
    """No data file of a manifest is older than its `min_sequence_number`."""
    unproven = ExitStack()
    unproven.enter_context(
        replaced(dangling, "_proved", lambda by_lists, deletes, data, others, base, asks, added_number: by_lists)
    )
    for module in (dangling, live_files):
        unproven.enter_context(
            replaced(
                module,
                "proven_min_number",
                lambda manifests, base, asks, added_number: live_files.min_data_sequence_number(
                    manifests, base, added_number
                ),
            )
        )
    return unproven


def bounds_of_paths() -> AbstractContextManager[Any]:
    """Position deletes are of data files between the bounds of their paths alone, whichever way round these are."""

    def between(paths: Sequence[bytes], bounds: reach.PathBounds) -> slice:
        lower, upper = bounds
        begin = 0 if lower is None else bisect_left(paths, lower)
        end = len(paths) if upper is None else bisect_right(paths, upper, key=lambda path: path[: len(upper)])
        return slice(begin, end)

    def lower_bounds(deletes: pa.Table) -> pa.ChunkedArray:
        return planned_deletes._path_bounds(deletes)[0].cast(pa.binary())

    believed = ExitStack()
    believed.enter_context(replaced(reach, "named_range", between))
    believed.enter_context(replaced(planned_deletes, "_sole_paths", lower_bounds))
    for module in (reach, matched_deletes):
        believed.enter_context(replaced(module, "sole_path", lambda bounds: bounds[0]))
    return believed


def absent_columns() -> AbstractContextManager[Any]:
    """A column without a field id, beside columns with one, is not there."""
    believed = ExitStack()
    believed.enter_context(replaced(read, "all_have_ids", has_ids))
    believed.enter_context(replaced(read, "refuse_unidentified", lambda stored, schema, constants=(): None))
    return believed


def unused_schemas() -> AbstractContextManager[Any]:
    """A schema that is neither current nor a snapshot's is needed by nobody."""
    unused = expire_snapshots.unused_schema_ids
    return replaced(
        expire_snapshots,
        "unused_schema_ids",
        lambda metadata, snapshot_ids, spec_ids=(), equality_ids=(): unused(metadata, snapshot_ids, spec_ids),
    )


MUTANTS: Mapping[Callable[[], AbstractContextManager[Any]], Hunt] = {
    counts_of_a_list: Hunt("_counts", "rewrite_manifests"),
    min_numbers_of_a_list: Hunt("_min_numbers", "rewrite_manifests, dangling", 6),
    bounds_of_paths: Hunt("_crossed_paths", "compact", 5),
    absent_columns: Hunt("_mapped_ids", "compact", 2),
    unused_schemas: Hunt("_row", "expire_snapshots"),
}
