import pytest

from icekeep.airflow.form import asked_call
from icekeep.airflow.units import JobOnTable
from icekeep.errors import UsageError
from kit.cases import for_each

FORM = {"table": "c.d.t", "job": "expire_snapshots", "arguments": [], "dry_run": True, "run_by": "spark-submit"}


def asked(**changed):
    return asked_call({**FORM, **changed}, 0)


def test_a_form_is_a_call():
    assert asked() == JobOnTable(job="expire_snapshots", table="c.d.t", arguments=("--dry-run",), submit=True)
    assert asked(arguments=["--older-than=7d", "--trash", "3d"], dry_run=False, run_by="worker") == JobOnTable(
        job="expire_snapshots", table="c.d.t", arguments=("--older-than=7d", "--trash", "3d"), submit=False
    )
    assert asked(arguments=["--dry-run"]).arguments == ("--dry-run",)


@for_each(
    ("changed", "said"),
    [
        ({"table": "d.t"}, "'d.t' is no full name"),
        ({"arguments": ["--where=id > 1"]}, "unrecognized arguments"),
        ({"arguments": ["--older-than=soon"]}, "soon"),
        ({"arguments": ["--help"]}, "ask for help"),
        ({"arguments": ["--config=/etc/passwd"]}, "give settings of the job"),
        ({"arguments": ["--result-file=/etc/cron.d/x"]}, "give settings of the job"),
        ({"arguments": ["--table=c.d.other"]}, "argument --table: is given twice"),
        ({"arguments": ["--catalog=other"]}, "give settings of the job"),
        ({"arguments": ["--output=json"]}, "give settings of the job"),
        ({"arguments": ["--policy=mine"]}, "give settings of the job"),
    ],
)
def test_what_is_no_setting_of_the_job_is_refused(changed, said):
    with pytest.raises(UsageError, match=said):
        asked(**changed)
