"""Runs in `.venv-schedulers`, without icekeep: what Dagster and Prefect make of the examples, as JSON on stdout.

`schedulers_probe.py dagster|prefect` reads from stdin, one a line, names of directories in which `icekeep` says how it ends; each
is run once by the example, with the variables that the example goes by.
"""

import json
import os
import sys
from typing import Any

os.environ["PREFECT_LOGGING_LEVEL"] = "CRITICAL"


def in_dagster() -> dict[str, Any]:
    import dagster as dg
    import dagster_icekeep as example

    result = dg.materialize([example.maintained_tables], raise_on_error=False)
    told: dict[str, Any] = {"ok": result.success, "message": ""}
    if result.success:
        [made] = result.asset_materializations_for_node("maintained_tables")
        told["figures"] = {key: one.value for key, one in made.metadata.items()}
    else:
        [failed] = [one for one in result.all_events if one.event_type_value == "STEP_FAILURE"]
        told["message"] = failed.step_failure_data.user_failure_data.description
    return told


def in_prefect() -> dict[str, Any]:
    import prefect_icekeep as example

    state = example.nightly(return_state=True)
    if state.is_completed():
        return {"ok": True, "message": "", "result": state.result()}
    return {"ok": False, "message": str(state.result(raise_on_failure=False))}


def dagster_definitions() -> dict[str, Any]:
    import dagster_icekeep as example

    job = example.defs.resolve_job_def("maintain")
    return {"job": job.name, "cron": example.nightly.cron_schedule}


def main() -> None:
    which, *places = sys.argv[1:]
    import icekeep_process

    told: dict[str, Any] = {}
    run = {"dagster": in_dagster, "prefect": in_prefect}[which]
    if which == "prefect":
        from prefect.testing.utilities import prefect_test_harness

        with prefect_test_harness(server_startup_timeout=120):
            for place in places:
                icekeep_process.ICEKEEP = place
                told[place] = run()
    else:
        told["definitions"] = dagster_definitions()
        for place in places:
            icekeep_process.ICEKEEP = place
            told[place] = run()
    json.dump(told, sys.stdout)


main()
