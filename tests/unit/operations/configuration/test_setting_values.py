import pytest

from icekeep.errors import ConfigError, UsageError
from icekeep.operations.configuration.documents import parse_document
from icekeep.operations.configuration.setting_values import parse_option, parse_setting, read_setting
from icekeep.operations.jobs import JOBS
from icekeep.settings import Setting, SettingKind
from kit.cases import for_each


def test_a_flag_is_the_procedure_s_argument_with_dashes():
    flags = [setting.flag for setting in JOBS["expire_snapshots"].settings]
    assert flags[:4] == ["--older-than", "--retain-last", "--snapshot-ids", "--clean-expired-metadata"]
    assert {"--trash", "--approve", "--option"} <= {*flags}
    compact = [setting.flag for setting in JOBS["compact"].settings]
    assert compact == [
        "--strategy",
        "--sort-order",
        "--where",
        "--option",
        "--branch",
        "--verify",
        "--snapshot-property",
    ]


@for_each(
    ("kind", "text", "value"),
    [
        (SettingKind.TIME, "1h", 7_200_000 - 3_600_000),
        (SettingKind.AGE, "36h", 129_600_000),
        (SettingKind.DAYS, "3", 3),
        (SettingKind.DAYS, "3d", 3),
        (SettingKind.DAYS, "48h", 2),
        (SettingKind.NAME, "main", "main"),
        (SettingKind.NUMBER, "12", 12),
        (SettingKind.IDS, "1, 9223372036854775807", (1, 2**63 - 1)),
        (SettingKind.NAMES, "db.a, a.b.c", ("db.a", "a.b.c")),
        (SettingKind.LOCATIONS, "s3://lake/db/000000_0", ("s3://lake/db/000000_0",)),
        (SettingKind.LOCATIONS, "/wh/a,b/c..d, file:/wh/x,y", ("/wh/a,b/c..d", "file:/wh/x,y")),
        (SettingKind.FILTER, "a > 1", "a > 1"),
        (SettingKind.TEXT, "audit", "audit"),
    ],
)
def test_a_setting_is_read_by_its_kind(kind, text, value):
    assert parse_setting(Setting("x", kind, ""), text, now_ms=7_200_000) == value


@for_each("text", ["", "-1", "1.5", "x", "0x1", "٣", "1_000"])
def test_a_number_is_a_long_in_decimal_digits(text):
    with pytest.raises(UsageError, match="is not a whole number of 0 or more"):
        parse_setting(Setting("x", SettingKind.NUMBER, ""), text, now_ms=0)
    with pytest.raises(UsageError, match="is not a whole number of 0 or more"):
        parse_setting(Setting("x", SettingKind.IDS, ""), f"1,{text}", now_ms=0)


@for_each("text", ["9223372036854775808", "1" * 5000])
def test_a_number_above_a_long_is_refused_as_too_large(text):
    for kind in (SettingKind.NUMBER, SettingKind.IDS, SettingKind.NUMBER_OR_ALL):
        with pytest.raises(
            UsageError, match="is above 9223372036854775807, the largest number that Iceberg has room for"
        ):
            parse_setting(Setting("x", kind, ""), text, now_ms=0)


def test_a_number_has_its_minimum():
    with pytest.raises(UsageError, match="'0' is not a whole number of 1 or more"):
        parse_setting(Setting("x", SettingKind.NUMBER, "", minimum=1), "0", now_ms=0)


def test_an_age_has_its_minimum():
    with pytest.raises(UsageError, match="the duration '0s' is too short; give 1ms or more"):
        parse_setting(Setting("x", SettingKind.AGE, "", minimum=1), "0s", now_ms=0)
    with pytest.raises(UsageError, match="cannot read the duration 'week'"):
        parse_setting(Setting("x", SettingKind.AGE, ""), "week", now_ms=0)


@for_each("text", ["36h", "1500ms", "week", "-1", "", "1.5d"])
def test_days_are_whole(text):
    with pytest.raises(
        UsageError, match=r"is not whole days, 0 or more; give them as 3 or 3d|cannot read the duration"
    ):
        parse_setting(Setting("trash", SettingKind.DAYS, ""), text, now_ms=0)


def test_a_policy_may_give_days_as_a_number_or_as_text():
    trash = Setting("trash", SettingKind.DAYS, "")
    for text in ("3", "3d"):
        assert read_setting(trash, parse_document(f"trash: {text}", "f.yaml").mapping()["trash"]) == (
            f"--trash={text}",
        )
    with pytest.raises(ConfigError, match="is not whole days"):
        read_setting(trash, parse_document("trash: 5h", "f.yaml").mapping()["trash"])


def test_a_setting_of_a_policy_may_be_an_age_or_a_name():
    def entry(text):
        document = parse_document(f"x: {text}", "f.yaml")
        return document.mapping()["x"]

    age = Setting("max_age", SettingKind.AGE, "", minimum=1)
    assert read_setting(age, entry("7d")) == ("--max-age=7d",)
    assert read_setting(Setting("branch", SettingKind.NAME, ""), entry("audit")) == ("--branch=audit",)
    for wrong in ("7", "0s", "soon"):
        with pytest.raises(ConfigError, match="'x'"):
            read_setting(age, entry(wrong))


def test_option_value_may_hold_equals_sign():
    assert parse_option(" key = a=b ") == ("key", "a=b")
    assert parse_option("key=") == ("key", "")


@for_each("text", ["key", "=value", " =value", ""])
def test_an_option_without_key_or_equals_sign_is_refused(text):
    with pytest.raises(UsageError, match="is not of the form KEY=VALUE"):
        parse_option(text)


@pytest.mark.parametrize("text", ["", " ", ",s3://lake/a"])
def test_a_list_of_files_names_some(text):
    with pytest.raises(UsageError, match="is no list of files"):
        parse_setting(Setting("x", SettingKind.LOCATIONS, ""), text, now_ms=0)
