import json

from icekeep.airflow.process_lines import ProcessOutput


def said(*lines):
    one = ProcessOutput()
    assert [*one.looked_at(lines)] == [*lines]
    return one


def test_the_line_of_the_last_error_is_kept_and_no_other():
    one = said("INFO icekeep: no", "icekeep: first\n", "icekeep: the table is gone\n", "INFO end")
    assert one.line == "the table is gone"
    assert one.tail.endswith("icekeep: the table is gone\nINFO end")


def test_where_to_read_on_is_left_out_as_in_documents():
    one = said("icekeep: the table has gc.enabled=false (see there) (icekeep help safety)")
    assert one.line == "the table has gc.enabled=false (see there)"
    assert one.tail.endswith("(icekeep help safety)")


def test_an_error_is_found_in_logs_of_json_too():
    def line(**changed):
        known = {"level": "error", "message": "the table is gone", "logger": "icekeep", "facts": {"exit_status": 2}}
        return json.dumps({**known, **changed})

    assert said(line(), "{", "{}", line(level="warning", message="no")).line == "the table is gone"
    assert said(line(facts=None), line(logger="py4j")).line == ""


def test_the_application_is_that_of_which_the_last_line_speaks():
    yarn = said(
        "Submitted application application_1_0001", "Application report for application_2_0042 (state: FINISHED)"
    )
    assert yarn.application == "application_2_0042"
    assert said("labels: spark-app-selector -> spark-0af3, spark-role -> driver").application == "spark-0af3"
    assert said("nothing of the kind").application == ""


def test_however_much_is_said_only_the_end_is_kept():
    assert len(said(*(f"line {number}" for number in range(10_000))).tail) == 2000


def test_the_address_of_the_application_is_that_of_the_cluster_or_of_the_driver():
    assert said("\t tracking URL: http://rm:8088/proxy/application_1_0001/").address == (
        "http://rm:8088/proxy/application_1_0001/"
    )
    assert said("INFO SparkUI: Bound SparkUI to 0.0.0.0, and started at http://host:4040").address == "http://host:4040"
    assert said("INFO see http://elsewhere", "tracking URL: N/A").address == ""
