"""Runs for OpenLineage: START, then COMPLETE, FAIL or ABORT, with the table as what is read and, where it changed, written.

By its own client, which is configured as its users know it: `OPENLINEAGE_*` of the environment, or `openlineage.yml`. Tables have
the names that other integrations give them: where they lie, with the name in the catalog as a symlink.
"""

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from icekeep.errors import require_package
from icekeep.events import Event, RunEnded, RunStarted
from icekeep.names import split_name
from icekeep.storage.locations import AZURE, FILE, HDFS, STORES_OF_KEYS, parse_location, store_authority, store_kind
from icekeep.telemetry.figures import ADDED_BYTES, ADDED_FILES, RunTally, is_done_well
from icekeep.version import ICEKEEP_VERSION

_PARENT, _ROOT = "OPENLINEAGE_PARENT_ID", "OPENLINEAGE_ROOT_PARENT_ID"
_UUID_LENGTH = 36
_INTERRUPTED = "interrupted"


def new_client() -> Any:
    """The client that the environment asks for.

    Raises:
        UsageError: the package `openlineage-python` is not installed.
    """
    require_package("openlineage.client", "openlineage", "openlineage-python")
    from openlineage.client import OpenLineageClient

    return OpenLineageClient()


class OpenLineage:
    """The sink: two events a run. One that only tells is none: nothing comes of it.

    Args:
        client: of OpenLineage.
        environ: names the namespace of jobs (`OPENLINEAGE_NAMESPACE`), and the run that this process is a part of
            (`OPENLINEAGE_PARENT_ID`, as Airflow's provider makes it: namespace/job/run).
    """

    def __init__(self, client: Any, environ: Mapping[str, str]) -> None:
        self._client = client
        self._namespace = environ.get("OPENLINEAGE_NAMESPACE") or "default"
        self._outside = _named_run(environ.get(_PARENT, ""))
        self._root = _named_run(environ.get(_ROOT, "")) or self._outside
        self._open: dict[str, RunTally] = {}

    def on(self, event: Event, at_ms: int) -> None:
        if isinstance(event, RunStarted) and not event.only_tells:
            self._open[event.run_id] = RunTally(event)
            self._emit("START", event, None)
        elif isinstance(event, RunEnded) and event.run_id in self._open:
            started = self._open[event.run_id].started
            try:
                self._emit(_state(event), started, event)
            finally:
                del self._open[event.run_id]

    def close(self) -> None:
        """Let the client finish."""
        self._client.close(timeout=-1)

    def _emit(self, state: str, started: RunStarted, ended: RunEnded | None) -> None:
        from openlineage.client import event_v2
        from openlineage.client.facet_v2 import job_type_job

        at_ms = started.started_ms if ended is None else ended.ended_ms
        job_type = job_type_job.JobTypeJobFacet(processingType="BATCH", integration="ICEKEEP", jobType="JOB")
        event = event_v2.RunEvent(
            eventType=event_v2.RunState[state],
            eventTime=datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            run=event_v2.Run(runId=_uuid(started.run_id), facets=self._run_facets(started, ended)),
            job=event_v2.Job(self._namespace, _job_name(started), facets={"jobType": job_type}),
            inputs=self._inputs(started),
            outputs=self._outputs(started, ended),
            producer=f"urn:icekeep:{ICEKEEP_VERSION}",
        )
        if self._client.transport.kind == "console":
            # The client would log it, on a level that nobody sees.
            from openlineage.client.serde import Serde

            sys.stderr.write(Serde.to_json(event) + "\n")
            return
        self._client.emit(event)

    def _run_facets(self, started: RunStarted, ended: RunEnded | None) -> dict[str, Any]:
        from openlineage.client.facet_v2 import error_message_run, processing_engine_run

        facets: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(ICEKEEP_VERSION, "icekeep")
        }
        parent = self._parent_facet(started)
        if parent is not None:
            facets["parent"] = parent
        if ended is not None and ended.error_message is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(ended.error_message, "PYTHON")
        told: dict[str, Any] = {"run": started.run_id, "policy": started.policy}
        if ended is not None:
            told |= {"status": ended.status, "exitStatus": ended.exit_status, "errorKind": ended.error_kind}
        facets["icekeep"] = _own_facet(told)
        return facets

    def _parent_facet(self, started: RunStarted) -> Any:
        from openlineage.client.facet_v2 import parent_run

        above = self._open.get(started.parent_id or "")
        if above is not None:
            namespace, name, run_id = self._namespace, _job_name(above.started), _uuid(above.started.run_id)
        elif self._outside is not None:
            namespace, name, run_id = self._outside
        else:
            return None
        root_namespace, root_name, root_id = self._root or (namespace, name, run_id)
        return parent_run.ParentRunFacet(
            run=parent_run.Run(runId=run_id),
            job=parent_run.Job(namespace, name),
            root=parent_run.Root(
                run=parent_run.RootRun(runId=root_id), job=parent_run.RootJob(root_namespace, root_name)
            ),
        )

    def _inputs(self, started: RunStarted) -> list[Any]:
        from openlineage.client import event_v2

        if started.table_location is None:
            return []
        namespace, name = dataset_name(started.table_location)
        return [event_v2.InputDataset(namespace, name, facets=_facets(started, started.snapshot_id))]

    def _outputs(self, started: RunStarted, ended: RunEnded | None) -> list[Any]:
        from openlineage.client import event_v2
        from openlineage.client.facet_v2 import lifecycle_state_change_dataset as changes
        from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

        if started.table_location is None or ended is None or not _has_changed(started, ended):
            return []
        namespace, name = dataset_name(started.table_location)
        facets = _facets(started, ended.snapshot_id)
        if started.job == "drop":
            state = changes.LifecycleStateChange.DROP
            facets["lifecycleStateChange"] = changes.LifecycleStateChangeDatasetFacet(state)
        figures = {one.metric: int(one.value) for one in self._open[ended.run_id].figures(ended)}
        of_output = {}
        if ADDED_FILES in figures:
            size, count = figures.get(ADDED_BYTES), figures[ADDED_FILES]
            of_output["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(size=size, fileCount=count)
        return [event_v2.OutputDataset(namespace, name, facets=facets, outputFacets=of_output)]


def dataset_name(location: str) -> tuple[str, str]:
    """Namespace and name of what lies in a place, by OpenLineage's rules.

    >>> dataset_name("s3a://lake/db/events")
    ('s3://lake', 'db/events')
    >>> dataset_name("file:///data/db/events/")
    ('file', '/data/db/events')
    """
    scheme, authority, path = parse_location(location)
    kind, path = store_kind(scheme), path.rstrip("/")
    if kind == FILE:
        return FILE, path
    if kind == AZURE:
        return f"abfss://{store_authority(kind, authority)}", path.lstrip("/")
    # The NameNode's port is a part of its name there.
    is_key = kind in STORES_OF_KEYS or kind != HDFS
    return f"{kind}://{authority}", path.lstrip("/") if is_key else path


def _state(ended: RunEnded) -> str:
    if ended.status == _INTERRUPTED:
        return "ABORT"
    return "COMPLETE" if is_done_well(ended.exit_status) else "FAIL"


def _has_changed(started: RunStarted, ended: RunEnded) -> bool:
    """Whether the run moved the table; one that is gone was moved too."""
    if started.job == "drop":
        return is_done_well(ended.exit_status)
    return ended.metadata_location is not None and ended.metadata_location != started.metadata_location


def _facets(started: RunStarted, snapshot_id: int | None) -> dict[str, Any]:
    from openlineage.client.facet_v2 import (
        dataset_version_dataset,
        storage_dataset,
        symlinks_dataset,
    )

    catalog, *identifier = split_name(started.table)
    link = symlinks_dataset.Identifier(f"iceberg://{catalog}", ".".join(identifier), "TABLE")
    facets: dict[str, Any] = {
        "storage": storage_dataset.StorageDatasetFacet("iceberg"),
        "symlinks": symlinks_dataset.SymlinksDatasetFacet([link]),
    }
    if snapshot_id is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(snapshot_id))
    return facets


def _own_facet(told: Mapping[str, Any]) -> Any:
    """What OpenLineage has no facet for."""
    from openlineage.client.generated.base import RunFacet

    return RunFacet().with_additional_properties(**{key: value for key, value in told.items() if value is not None})


def _job_name(started: RunStarted) -> str:
    return ".".join(filter(None, (started.job.replace(" ", "_"), started.table)))


def _uuid(run_id: str) -> str:
    """The identifier that a run's name ends with."""
    return str(UUID(run_id[-_UUID_LENGTH:]))


def _named_run(text: str) -> tuple[str, str, str] | None:
    """`namespace/job/run` taken apart; `None` for what is not of that form."""
    namespace, _, rest = text.rpartition("/")[0].rpartition("/")
    run_id = text.rpartition("/")[2]
    try:
        return (namespace, rest, str(UUID(run_id))) if namespace and rest else None
    except ValueError:
        return None
