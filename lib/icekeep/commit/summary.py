"""The counters of a snapshot's summary (spec, Appendix F "Optional Snapshot Summary Fields").

Counts of what was added and removed are written where they are not zero. Totals are the parent's plus the difference;
where the parent has none, or they would fall below zero, none are written, since a wrong total is worse than none.

Who made a snapshot, by what the summary says: each engine leaves its name there in keys of its own.

Iceberg Java writes `engine-name`, `engine-version`, `app-id` and `iceberg-version` for whatever engine it works in (spec,
Appendix F "Optional Snapshot Summary Fields"), and so does icekeep; Spark, Flink, Trino, Presto and Kafka Connect have keys of
their own, and so has icekeep for its runs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from icekeep.errors import InvalidTableError
from icekeep.runs import Run, application_id, icekeep_version
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestFile
from icekeep.spec.reach import PartitionKey, is_deletion_vector, partition_key

COMMIT_ID = "icekeep.commit-id"
"""Names the commit that made a snapshot, so that its writer can recognise it after a lost answer."""

TOTALS = {
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}


FILE_TOTALS = {ManifestContent.DATA: "total-data-files", ManifestContent.DELETES: "total-delete-files"}
"""The totals that a manifest list can be held against: nothing else shows that it was cut between two blocks."""

_KINDS = {ManifestContent.DATA: "data files", ManifestContent.DELETES: "delete files"}


def check_file_total(
    where: str, content: ManifestContent, listed: int, recorded: str, snapshot_id: int, *, otherwise: str = ""
) -> None:
    """Hold the live files that a manifest list leads to against the total in a snapshot's summary.

    Args:
        where: what leads to them, to begin a sentence with.
        listed: by the counts of the list.
        recorded: by the summary.
        otherwise: what else can be done, to end the sentence with.

    Raises:
        InvalidTableError: they differ.
    """
    if recorded != str(listed):
        raise InvalidTableError(
            f"{where} leads to {listed} {_KINDS[content]}, but snapshot {snapshot_id} says {FILE_TOTALS[content]} {recorded}; "
            "run `icekeep check --table NAME`: `icekeep repair --table NAME --fault 204` corrects wrong counts in the list, "
            "`--fault 215` corrects a wrong total, and a list that was cut short needs a rollback"
            f"{otherwise}",
            snapshot_id=snapshot_id,
        )


def live_counts(rows: Iterable[ManifestFile]) -> dict[ManifestContent, int | None]:
    """The live files that rows of a manifest list lead to; `None` where a row does not say how many."""
    counts: dict[ManifestContent, int | None] = dict.fromkeys(FILE_TOTALS, 0)
    for row in rows:
        before, more = counts[row.content], row.live_files_count
        counts[row.content] = None if before is None or more is None else before + more
    return counts


def totals_of(files: Iterable[DataFile]) -> Counter[str]:
    """The totals of a snapshot whose live files are these."""
    totals = Counter(dict.fromkeys(TOTALS, 0))
    for file in files:
        totals["total-files-size"] += file.file_size_in_bytes
        if file.content is FileContent.DATA:
            totals["total-data-files"] += 1
            totals["total-records"] += file.record_count
            continue
        kind = "equality" if file.content is FileContent.EQUALITY_DELETES else "position"
        totals["total-delete-files"] += 1
        totals[f"total-{kind}-deletes"] += file.record_count
    return totals


class SummaryBuilder:
    """Counts files as they are added and removed; `extra` is written as it is, where it claims no key of ours."""

    def __init__(self, extra: Mapping[str, str] | None = None) -> None:
        self._extra = dict(extra or {})
        self._counts: Counter[str] = Counter()
        self._partitions: set[PartitionKey] = set()
        self._corrections: Counter[str] = Counter()
        self._anew: Mapping[str, int] | None = None

    def add(self, file: DataFile) -> None:
        """Count a file that the snapshot adds."""
        if file.content is FileContent.DATA:
            self._counts["added-data-files"] += 1
            self._counts["added-records"] += file.record_count
        else:
            self._count_deletes("added", file)
        self._counts["added-files-size"] += file.file_size_in_bytes
        self._partitions.add(partition_key(file))

    def remove(self, file: DataFile) -> None:
        """Count a file that the snapshot removes."""
        if file.content is FileContent.DATA:
            self._counts["deleted-data-files"] += 1
            self._counts["deleted-records"] += file.record_count
        else:
            self._count_deletes("removed", file)
        self._counts["removed-files-size"] += file.file_size_in_bytes
        self._partitions.add(partition_key(file))

    def correct(self, before: DataFile, after: DataFile | None) -> None:
        """Have totals count a file as it is described now, which is neither added nor removed; `None`: not once more."""
        self._corrections.update(totals_of(() if after is None else [after]))
        self._corrections.subtract(totals_of([before]))

    def count_anew(self, totals: Mapping[str, int]) -> None:
        """Have totals say this, whatever those of the parent are."""
        self._anew = totals

    def absorb(self, other: "SummaryBuilder") -> None:
        """Count what another one has counted, as well."""
        self._counts.update(other._counts)
        self._corrections.update(other._corrections)
        self._partitions |= other._partitions

    def build(self, operation: str, parent: Mapping[str, str] | None, commit_uuid: str) -> dict[str, str]:
        """The summary of a snapshot whose parent on the branch has the summary `parent`; `None`: there is no parent."""
        out = {**self._extra, "operation": operation, COMMIT_ID: commit_uuid}
        out.update({key: str(count) for key, count in self._counts.items() if count})
        if self._partitions:
            out["changed-partition-count"] = str(len(self._partitions))
        for total, (added, removed) in TOTALS.items():
            if self._anew is not None:
                after = self._anew[total]
            else:
                before = "0" if parent is None else parent.get(total, "")
                if not before.isdecimal():
                    continue
                after = int(before) + self._counts[added] - self._counts[removed] + self._corrections[total]
            if after >= 0:
                out[total] = str(after)
        return out

    def _count_deletes(self, verb: str, file: DataFile) -> None:
        self._counts[f"{verb}-delete-files"] += 1
        if file.content is FileContent.EQUALITY_DELETES:
            self._counts[f"{verb}-equality-delete-files"] += 1
            self._counts[f"{verb}-equality-deletes"] += file.record_count
        else:
            kind = "dvs" if is_deletion_vector(file) else "position-delete-files"
            self._counts[f"{verb}-{kind}"] += 1
            self._counts[f"{verb}-position-deletes"] += file.record_count


JOB_KEY = "icekeep.job"
RUN_KEY = "icekeep.run-id"
POLICY_KEY = "icekeep.policy"
PLAN_KEY = "icekeep.plan"
_OLD_RUN_KEY = "icekeep.run"
"""In which `repair` named its runs before all jobs did so."""

_ENGINE_KEY, _ENGINE_VERSION_KEY, _APPLICATION_KEY = "engine-name", "engine-version", "app-id"
_OWN_NAME = "icekeep"
_OWN_PREFIX = "icekeep."
_KAFKA_PREFIX = "kafka.connect."
_ICEBERG = "Apache Iceberg "

_NAMES = {
    "spark": "Spark",
    "flink": "Flink",
    "trino": "Trino",
    "presto": "Presto",
    "hive": "Hive",
    "icekeep": "icekeep",
}

_RUNS = (
    ("spark.app.id", "Spark", "application"),
    ("trino_query_id", "Trino", "query"),
    ("presto_query_id", "Presto", "query"),
    ("flink.job-id", "Flink", "job"),
)
"""Keys that only one engine writes: whose they are, and what their value names."""


def maker_keys(run: Run | None) -> dict[str, str]:
    """What a snapshot of ours says of who made it; without a run it says of the job, the run and the policy nothing."""
    app_id = (run and run.app_id) or application_id()
    told = {
        _ENGINE_KEY: _OWN_NAME,
        _ENGINE_VERSION_KEY: icekeep_version(),
        _APPLICATION_KEY: app_id,
        JOB_KEY: run and run.job,
        RUN_KEY: run and run.run_id,
        POLICY_KEY: run and run.policy,
        PLAN_KEY: run and run.plan,
    }
    return {key: value for key, value in told.items() if value}


def run_of(summary: Mapping[str, str] | None) -> str:
    """The run of icekeep that made a snapshot; empty where it names none."""
    return (summary or {}).get(RUN_KEY) or (summary or {}).get(_OLD_RUN_KEY, "")


def made_by(summary: Mapping[str, str] | None) -> str | None:
    """The engine that made a snapshot, with its version and its run as far as it says so; `None` where nothing tells.

    >>> made_by({"engine-name": "spark", "engine-version": "3.5.5", "app-id": "a-1", "iceberg-version": "Apache Iceberg 1.9.0"})
    'Spark 3.5.5, application a-1, Iceberg 1.9.0'
    >>> made_by({"trino_query_id": "20260131_120000_00042_abcde"})
    'Trino, query 20260131_120000_00042_abcde'
    >>> made_by({"engine-name": "icekeep", "engine-version": "0.1.0", "icekeep.run-id": "compact-1", "icekeep.policy": "nightly"})
    'icekeep 0.1.0, run compact-1, policy nightly'
    """
    if not summary:
        return None
    engine = _engine(summary)
    # Others may keep what they found in a summary of ours.
    runs = _own_run(summary) if engine.startswith(_OWN_NAME) else [_run(summary)]
    found = (engine, *runs, _library(summary))
    return ", ".join(part for part in found if part) or None


def _engine(summary: Mapping[str, str]) -> str:
    name = summary.get(_ENGINE_KEY, "")
    if name:
        version = summary.get(_ENGINE_VERSION_KEY, "")
        return f"{_NAMES.get(name.lower(), name)} {version}".rstrip()
    for key, engine, _ in _RUNS:
        if key in summary:
            return engine
    if COMMIT_ID in summary or any(key.startswith(_OWN_PREFIX) for key in summary):
        return "icekeep"
    return "Kafka Connect" if any(key.startswith(_KAFKA_PREFIX) for key in summary) else ""


def _run(summary: Mapping[str, str]) -> str:
    for key, _, what in _RUNS:
        if summary.get(key):
            return f"{what} {summary[key]}"
    return f"application {summary[_APPLICATION_KEY]}" if summary.get(_APPLICATION_KEY) else ""


def _own_run(summary: Mapping[str, str]) -> list[str]:
    run, policy = run_of(summary), summary.get(POLICY_KEY)
    return [f"run {run}" if run else _run(summary), f"policy {policy}" if policy else ""]


def _library(summary: Mapping[str, str]) -> str:
    """The version of Iceberg Java, which adds the commit that it was built from."""
    text = summary.get("iceberg-version", "")
    return f"Iceberg {text.removeprefix(_ICEBERG).partition(' (commit')[0]}" if text else ""
