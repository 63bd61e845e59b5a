from icekeep.planning.spark.failures import spark_failed
from kit.cases import for_each

ALL = "give spark-submit --archives icekeep-env.tar.gz#env --conf spark.pyspark.python=./env/bin/python"


@for_each(
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
    assert spark_failed(RuntimeError(text)).message == f"Spark failed: {told}"
