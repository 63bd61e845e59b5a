import pytest

from icekeep.planning.spark.executor_errors import line_of

ALL = "give spark-submit --archives icekeep-env.tar.gz#env --conf spark.pyspark.python=./env/bin/python"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "Job aborted\nTraceback\n  ZeroDivisionError: nobody expected this\n\tat Java",
            "ZeroDivisionError: nobody expected this",
        ),
        ("\nexecutor lost\nmore", "executor lost"),
        ("", "RuntimeError('')"),
    ],
)
def test_the_line_that_says_most_is_told(text: str, told: str) -> None:
    assert line_of(RuntimeError(text)) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "Job aborted\nModuleNotFoundError: No module named 'icekeep'\n",
            f"the executors' Python has no package 'icekeep'; {ALL}, or --py-files icekeep.zip where all other packages "
            "are installed",
        ),
        (
            "Caused by Traceback\nModuleNotFoundError: No module named 'pyarrow.compute'\n\tat Java",
            f"the executors' Python has no package 'pyarrow'; {ALL}",
        ),
        (
            "[PACKAGE_NOT_INSTALLED] PyArrow >= 15.0.0 must be installed; however, it was not found.",
            f"the executors' Python has no package 'pyarrow'; {ALL}",
        ),
        (
            'java.io.IOException: Cannot run program "./env/bin/python": error=2, No such file or directory',
            f"executors cannot start './env/bin/python'; {ALL}",
        ),
    ],
)
def test_what_executors_lack_is_told_with_what_to_do(text: str, told: str) -> None:
    assert line_of(RuntimeError(text)) == told
