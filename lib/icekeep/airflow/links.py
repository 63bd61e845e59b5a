"""Buttons of a task in Airflow: the runbook of its error, the report of the tables, and the Spark application.

Airflow 3 asks for the addresses in the worker, when the task has ended, and keeps them in its database. A link without an address
is not shown.
"""

import re
from collections.abc import Sequence
from typing import Any

from icekeep.airflow.installation import Installation
from icekeep.airflow.outcomes import CallOutcome
from icekeep.airflow.versions import BaseOperatorLink
from icekeep.operations.runbooks import pages

RUNBOOK, REPORT, SPARK = "Runbook", "Report", "Spark application"

_ADDRESS = re.compile(r"https?://[^\s<>\"']+")


def addresses(ended: Sequence[CallOutcome], installation: Installation, spark: str) -> dict[str, str]:
    """The address of each link that has one, by its name.

    Args:
        ended: the calls of the task so far; the runbook is that of the first that failed.
        spark: where the last Spark application is seen, as spark-submit says; empty where it says nothing.
    """
    found = {REPORT: installation.report_url or "", SPARK: spark}
    kind = next((one.error_kind for one in ended if not one.is_done), "")
    if installation.docs_url and kind in pages():
        found[RUNBOOK] = f"{installation.docs_url.rstrip('/')}/runbooks/{kind}.html"
    return {name: address for name, address in found.items() if _ADDRESS.fullmatch(address)}


class _Link(BaseOperatorLink):
    """A link to what the operator has found under its name."""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address; empty where there is none."""
        return str(getattr(operator, "links", {}).get(self.name, ""))


class RunbookLink(_Link):
    """The page of the documentation about the error by which the task failed."""

    name = RUNBOOK


class ReportLink(_Link):
    """The page that `icekeep report` has made."""

    name = REPORT


class SparkLink(_Link):
    """The page of the Spark application, or of its driver."""

    name = SPARK
