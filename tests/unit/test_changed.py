"""`make changed`: what a change leads to."""

import pytest

from changed import affected
from kit.cases import for_each

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def names(*changed: str) -> set[str]:
    return {path.removeprefix("tests/") for path in affected({*changed})}


def test_a_module_leads_to_the_tests_that_import_it_or_what_imports_it():
    found = names("lib/icekeep/maintenance/orphans/listing.py")
    assert "spark/test_removed_files.py" in found
    assert "end_to_end/test_jobs.py" in found
    assert found.isdisjoint(
        {"unit/spec/test_schema.py", "unit/formats/test_writer.py", "local/storage/test_objects.py"}
    )


def test_what_all_imports_lead_to_is_tested_by_all_that_can_see_it():
    found = names("lib/icekeep/spec/types.py")
    assert {"unit/spec/test_schema.py", "unit/formats/test_writer.py", "interop/test_compaction.py"} <= found


def test_a_helper_leads_to_the_tests_that_import_it_also_through_another():
    found = names("tests/kit/object_store.py")
    assert {"local/storage/test_objects.py", "local/catalog/test_filesystem_on_s3.py"} <= found
    assert "unit/spec/test_schema.py" not in found


@for_each(
    ("path", "test"),
    [
        ("README.md", "unit/test_pages.py"),
        ("airflow_dags/maintenance.py", "unit/airflow/test_dags.py"),
        ("tests/unit/spec/filters/expressions.txt", "unit/spec/filters/test_parsing.py"),
        ("tests/unit/spec/retention.txt", "unit/spec/test_retention.py"),
        ("tests/unit/maintenance/orphans/conftest.py", "unit/maintenance/orphans/test_remove.py"),
        ("tests/kit/java_judge/Tables.java", "interop/test_java_jobs.py"),
        ("tests/kit/java_worker.py", "interop/test_compaction.py"),
        (".ci/java/pom.xml", "interop/test_hdfs.py"),
        (".ci/flink/pom.xml", "interop/test_flink.py"),
        ("tests/kit/java_flink/Jobs.java", "interop/test_flink.py"),
        (".ci/trino/pom.xml", "interop/test_trino.py"),
    ],
)
def test_what_is_no_module_leads_to_the_tests_that_speak_of_it(path: str, test: str):
    assert test in names(path)


def test_a_test_leads_to_itself_and_the_project_s_settings_lead_to_all():
    assert names("tests/unit/spec/test_schema.py") == {"unit/spec/test_schema.py"}
    assert len(names("pyproject.toml")) > 300
    assert names() == set()
    assert len(names(".ci/run")) < len(names("pyproject.toml")) / 5
