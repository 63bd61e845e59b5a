"""The summary of a snapshot (spec, Appendix F "Optional Snapshot Summary Fields"): its counters, and its engine.

Counts of added and removed files are written where they are not zero. Totals are the parent's plus the difference; where the
parent has none, or they would fall below zero, none are written, since a wrong total is worse than none.

Iceberg Java writes `engine-name`, `engine-version`, `app-id` and `iceberg-version` in whatever engine it runs; icekeep writes
the first three. Spark, Flink, Trino, Presto and Kafka Connect have keys of their own, and so has icekeep for its runs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from icekeep.errors import THIS_TABLE, InvalidTableError, shown_command
from icekeep.runs import Run, application_id
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestFile
from icekeep.spec.reach import PartitionKey, is_deletion_vector, partition_key
from icekeep.version import ICEKEEP_VERSION

COMMIT_ID = "icekeep.commit-id"
"""The commit that made a snapshot, by which its writer recognises it after a lost answer."""

STAGED_WAP_ID = "wap.id"
"""The name that its writer gave a staged snapshot."""

PUBLISHED_WAP_ID, SOURCE_SNAPSHOT_ID = "published-wap-id", "source-snapshot-id"
"""Of a snapshot that was cherry-picked: the `wap.id` and the id of the one that it was made from."""

TOTALS = {
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}

FILE_TOTALS = {ManifestContent.DATA: "total-data-files", ManifestContent.DELETES: "total-delete-files"}
"""The totals to compare a manifest list with: nothing else shows that it was cut between two blocks."""


def check_file_total(
    where: str, content: ManifestContent, listed: int, recorded: str, snapshot_id: int, *, otherwise: str = ""
) -> None:
    """Raise `InvalidTableError` where the live files by a manifest list differ from the total in the snapshot's summary.

    Args:
        where: the list, as the subject of the error text.
        listed: by the counts of the list.
        recorded: by the summary.
        otherwise: appended to the error text, another remedy.
    """
    if recorded != str(listed):
        kind = "data files" if content is ManifestContent.DATA else "delete files"
        raise InvalidTableError(
            f"{where} leads to {listed} {kind}, but snapshot {snapshot_id} says {FILE_TOTALS[content]} {recorded}; "
            f"run `{shown_command('check', '--table', THIS_TABLE)}`: "
            f"`{shown_command('repair', '--table', THIS_TABLE, '--fault', '204')}` corrects wrong counts in the list, "
            "`--fault 215` corrects a wrong total, and a list that was cut short needs a rollback"
            f"{otherwise}",
            snapshot_id=snapshot_id,
        )


def live_counts(rows: Iterable[ManifestFile]) -> dict[ManifestContent, int | None]:
    """The live files by the counts in rows of a manifest list; `None` where a row lacks its counts."""
    counts: dict[ManifestContent, int | None] = dict.fromkeys(FILE_TOTALS, 0)
    for row in rows:
        before, more = counts[row.content], row.live_files_count
        counts[row.content] = None if before is None or more is None else before + more
    return counts


def totals_of(files: Iterable[DataFile]) -> Counter[str]:
    """The totals of a snapshot with these live files."""
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
    """Counts added and removed files, on top of the counts of other builders; `extra` gives way to icekeep's own keys."""

    def __init__(self, extra: Mapping[str, str] | None = None, *counted: "SummaryBuilder") -> None:
        self._extra = dict(extra or {})
        self._counts: Counter[str] = Counter()
        self._partitions: set[PartitionKey] = set()
        self._corrections: Counter[str] = Counter()
        self.totals: Mapping[str, int] | None = None
        """Totals to write in place of the parent's and the difference."""
        for other in counted:
            self._counts.update(other._counts)
            self._corrections.update(other._corrections)
            self._partitions |= other._partitions

    def add(self, file: DataFile) -> None:
        self._count(file, "added", "added")

    def remove(self, file: DataFile) -> None:
        self._count(file, "removed", "deleted")

    def correct(self, before: DataFile, after: DataFile | None) -> None:
        """Count in totals a file whose entry is corrected, neither added nor removed; `None`: it was listed once too often."""
        self._corrections.update(totals_of(() if after is None else [after]))
        self._corrections.subtract(totals_of([before]))

    def build(self, operation: str, parent: Mapping[str, str] | None, commit_uuid: str) -> dict[str, str]:
        """`parent` is the summary of the parent snapshot; `None`: there is no parent."""
        out = {**self._extra, "operation": operation, COMMIT_ID: commit_uuid}
        out.update({key: str(count) for key, count in self._counts.items() if count})
        if self._partitions:
            out["changed-partition-count"] = str(len(self._partitions))
        for total, (added, removed) in TOTALS.items():
            if self.totals is not None:
                after = self.totals[total]
            else:
                before = "0" if parent is None else parent.get(total, "")
                if not before.isdecimal():
                    continue
                after = int(before) + self._counts[added] - self._counts[removed] + self._corrections[total]
            if after >= 0:
                out[total] = str(after)
        return out

    def _count(self, file: DataFile, verb: str, verb_of_data: str) -> None:
        if file.content is FileContent.DATA:
            self._counts[f"{verb_of_data}-data-files"] += 1
            self._counts[f"{verb_of_data}-records"] += file.record_count
        else:
            self._counts[f"{verb}-delete-files"] += 1
            if file.content is FileContent.EQUALITY_DELETES:
                kind, rows = "equality-delete-files", "equality-deletes"
            else:
                kind, rows = "dvs" if is_deletion_vector(file) else "position-delete-files", "position-deletes"
            self._counts[f"{verb}-{kind}"] += 1
            self._counts[f"{verb}-{rows}"] += file.record_count
        self._counts[f"{verb}-files-size"] += file.file_size_in_bytes
        self._partitions.add(partition_key(file))


JOB_KEY = "icekeep.job"
RUN_KEY = "icekeep.run-id"
POLICY_KEY = "icekeep.policy"
PLAN_KEY = "icekeep.plan"
_OLD_RUN_KEY = "icekeep.run"
"""The key by which `repair` named its runs before all jobs did."""

_ENGINE_KEY, _ENGINE_VERSION_KEY, _APPLICATION_KEY = "engine-name", "engine-version", "app-id"
_NAMES = {name.lower(): name for name in ("Spark", "Flink", "Trino", "Presto", "Hive", "icekeep")}
_RUNS = (
    ("spark.app.id", "Spark", "application"),
    ("trino_query_id", "Trino", "query"),
    ("presto_query_id", "Presto", "query"),
    ("flink.job-id", "Flink", "job"),
)
"""Keys that only one engine writes: the key, the engine, and the kind of work that the value names."""


def producer_keys(run: Run | None) -> dict[str, str]:
    """The summary keys that name the producer of our snapshots; without a run, the engine and application alone."""
    keys = {
        _ENGINE_KEY: "icekeep",
        _ENGINE_VERSION_KEY: ICEKEEP_VERSION,
        _APPLICATION_KEY: (run and run.app_id) or application_id(),
        JOB_KEY: run and run.job,
        RUN_KEY: run and run.run_id,
        POLICY_KEY: run and run.policy,
        PLAN_KEY: run and run.plan,
    }
    return {key: value for key, value in keys.items() if value}


def run_of(summary: Mapping[str, str] | None) -> str:
    """The run of icekeep that made a snapshot; empty where the summary names none."""
    return (summary or {}).get(RUN_KEY) or (summary or {}).get(_OLD_RUN_KEY, "")


def made_by(summary: Mapping[str, str] | None) -> str | None:
    """The engine that made a snapshot, with its version and run if they are known; `None` where the summary names none.

    >>> made_by({"engine-name": "spark", "engine-version": "3.5.5", "app-id": "a-1", "iceberg-version": "Apache Iceberg 1.9.0"})
    'Spark 3.5.5, application a-1, Iceberg 1.9.0'
    >>> made_by({"trino_query_id": "20260131_120000_00042_abcde"})
    'Trino, query 20260131_120000_00042_abcde'
    >>> made_by({"engine-name": "icekeep", "engine-version": "0.1.0", "icekeep.run-id": "compact-1", "icekeep.policy": "nightly"})
    'icekeep 0.1.0, run compact-1, policy nightly'
    """
    if not summary:
        return None
    producer = producer_of(summary)
    engine = producer.text
    work = next((f"{what} {summary[key]}" for key, _, what in _RUNS if summary.get(key)), "")
    if not work and summary.get(_APPLICATION_KEY):
        work = f"application {summary[_APPLICATION_KEY]}"
    policy = ""
    # Other engines may copy our keys from the summary of the parent.
    if engine.startswith("icekeep"):
        work = f"run {run_of(summary)}" if run_of(summary) else work
        policy = f"policy {summary[POLICY_KEY]}" if summary.get(POLICY_KEY) else ""
    parts = (engine, work, policy, f"Iceberg {producer.library}" if producer.library else "")
    return ", ".join(part for part in parts if part) or None


class Producer(NamedTuple):
    """What a summary says of the software that made its snapshot; empty texts where it says nothing.

    `library` is the version of Iceberg Java that was in the engine.
    """

    engine: str
    version: str = ""
    library: str = ""

    @property
    def text(self) -> str:
        """For people, such as `Spark 3.5.5`."""
        return f"{self.engine} {self.version}".rstrip()


def producer_of(summary: Mapping[str, str] | None) -> Producer:
    """The engine, its version and that of its Iceberg library.

    >>> producer_of({"flink.job-id": "j-1", "iceberg-version": "Apache Iceberg 1.9.0 (commit 7dbafb4)"})
    Producer(engine='Flink', version='', library='1.9.0')
    """
    said = summary or {}
    # Iceberg Java adds the commit that it was built from to its version.
    library = said.get("iceberg-version", "").removeprefix("Apache Iceberg ").partition(" (commit")[0]
    if name := said.get(_ENGINE_KEY, ""):
        return Producer(_NAMES.get(name.lower(), name), said.get(_ENGINE_VERSION_KEY, ""), library)
    engine = next((engine for key, engine, _ in _RUNS if key in said), "")
    if not engine and any(key.startswith("icekeep.") for key in said):
        engine = "icekeep"
    if not engine and any(key.startswith("kafka.connect.") for key in said):
        engine = "Kafka Connect"
    return Producer(engine, "", library)
