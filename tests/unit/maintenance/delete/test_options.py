"""A job that deletes takes the options that it goes by, and refuses the others."""

import inspect
from datetime import timedelta

import pytest

from icekeep.errors import OptionError
from icekeep.maintenance.delete.options import (
    DAY_MS,
    ExpirationOptions,
    GraceOptions,
    OrphanOptions,
    ReclaimOptions,
    asked_trash_days,
)
from icekeep.maintenance.options import parse_options
from icekeep.operations.jobs import JOBS, resolve
from kit.cases import for_each

TAKEN = {
    "expire_snapshots": {"grace", "keep-writer-progress", "max-deletes-per-second", "reclaim.roots"},
    "remove_orphan_files": {
        "grace",
        "max-orphan-ratio",
        "ignore-metadata-of",
        "max-deletes-per-second",
        "reclaim.roots",
    },
    "drop": {"max-deletes-per-second", "reclaim.roots"},
}
VALUES = {
    "grace": "7d",
    "keep-writer-progress": "30d",
    "max-orphan-ratio": "0.01",
    "ignore-metadata-of": "3e1b4a7c-0f4f-4b56-9b43-0d8c2a5f7e11",
    "max-deletes-per-second": "10",
    "reclaim.roots": "s3://bucket/old",
}


@for_each("job", TAKEN)
@for_each("option", VALUES)
def test_a_job_refuses_an_option_that_it_does_not_go_by(job, option):
    cls = resolve(JOBS[job].options)
    given = {option: VALUES[option]}
    if option in TAKEN[job]:
        parse_options(cls, given)
    else:
        with pytest.raises(OptionError, match=f"there is no option {option!r}; give one of ") as refused:
            parse_options(cls, given)
        assert all(name in refused.value.message for name in TAKEN[job])


@pytest.mark.parametrize("job", TAKEN)
def test_the_function_parses_the_options_that_the_command_line_does_and_help_names_them(job):
    cls = resolve(JOBS[job].options)
    hint = str(inspect.signature(resolve(JOBS[job].run)).parameters["options"].annotation)
    assert cls.__name__ in hint
    [setting] = [setting for setting in JOBS[job].settings if setting.argument == "options"]
    assert set(setting.help.partition(";")[0].split(", ")) == TAKEN[job] == set(cls.__struct_encode_fields__)


@pytest.mark.parametrize("cls", [GraceOptions, ExpirationOptions, OrphanOptions])
def test_texts_that_are_read_later_must_be_right_at_once(cls):
    cls(grace="36h").check()
    with pytest.raises(OptionError, match="grace"):
        cls(grace="soon").check()
    assert cls().grace_ms(compares_metadata=False) == DAY_MS
    ReclaimOptions().check()


def test_the_age_of_writers_progress_is_read_at_once_too():
    with pytest.raises(OptionError, match="keep-writer-progress"):
        ExpirationOptions(keep_writer_progress="for ever").check()


@for_each(
    "span", [True, 1.5, "3x", timedelta(microseconds=1), timedelta(hours=1), "36h", timedelta(days=3, milliseconds=1)]
)
def test_a_part_of_a_day_in_the_trash_is_refused_and_never_no_day(span):
    with pytest.raises(OptionError, match="whole days"):
        asked_trash_days(span)


def test_days_in_the_trash_may_be_a_number_a_text_or_a_timedelta():
    assert [asked_trash_days(given) for given in (None, 3, "3", "3d", timedelta(days=3))] == [None, 3, 3, 3, 3]
