from icekeep.errors import ConflictError, JobFailedError, UnavailableError, UsageError
from icekeep.operations.doctor.driver import Finding, Notes, NotTried
from kit.cases import for_each

REACH = "; see whether it runs, whether its address is right, and whether this machine may connect to it"


def failing(failure: Exception) -> Notes:
    def look() -> str:
        raise failure

    notes = Notes()
    assert not notes.look("driver", "check", look)
    return notes


def test_what_is_well_is_told_too() -> None:
    notes = Notes()
    assert notes.look("driver", "python", lambda: "3.11")
    assert notes.result(7).findings == (Finding(about="driver", check="python", status="ok", message="3.11"),)
    assert (notes.result(7).status, notes.result(7).elapsed_ms) == ("ok", 7)


@for_each(
    ("failure", "status", "message", "whole"),
    [
        (UsageError("it is wrong; mend it"), "wrong", "it is wrong; mend it", "wrong"),
        (UnavailableError("no answer"), "unavailable", f"no answer{REACH}", "unavailable"),
        (ConflictError("run it again"), "unavailable", "run it again", "unavailable"),
        (NotTried("give --namespace"), "not-tried", "give --namespace", "ok"),
        (ZeroDivisionError("x"), "wrong", "ZeroDivisionError: x", "wrong"),
        (
            JobFailedError("Spark failed: icekeep.errors.UnavailableError: far away"),
            "wrong",
            "Spark failed: icekeep.errors.UnavailableError: far away",
            "wrong",
        ),
        (
            RuntimeError("y\nicekeep.errors.UnavailableError: far away"),
            "unavailable",
            f"far away{REACH}",
            "unavailable",
        ),
    ],
)
def test_what_is_raised_is_a_finding(failure: Exception, status: str, message: str, whole: str) -> None:
    result = failing(failure).result(0)
    (finding,) = result.findings
    assert (finding.status, finding.message, result.status) == (status, message, whole)


def test_what_must_be_mended_counts_more_than_what_is_out_of_reach() -> None:
    notes = failing(UnavailableError("x"))
    notes.add("driver", "java", "wrong", "y")
    notes.add("driver", "python", "ok", "z")
    assert notes.result(0).status == "wrong"
