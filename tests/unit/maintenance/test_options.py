from typing import Annotated, Literal

import pytest
from msgspec import Meta, field

from icekeep.errors import OptionError
from icekeep.maintenance.options import Options, parse_options
from kit.cases import for_each


class SomeOptions(Options, frozen=True, kw_only=True):
    count: Annotated[int, Meta(gt=0)] = field(name="min-input-files", default=5)
    limit: Annotated[int, Meta(gt=0)] | None = field(name="max-files", default=None)
    share: Annotated[float, Meta(gt=0, le=1)] = field(name="delete-ratio", default=0.3)
    all: bool = field(name="rewrite-all", default=False)
    order: Literal["none", "bytes-asc"] = field(name="job-order", default="none")
    size: Annotated[int, Meta(gt=0)] = field(name="target-bytes", default=1)


class OtherOptions(Options, frozen=True, kw_only=True):
    count: int = 1


def parsed(**given):
    return parse_options(SomeOptions, {name.replace("_", "-"): value for name, value in given.items()})


def test_what_is_not_given_has_its_default():
    assert parse_options(SomeOptions, {}) == SomeOptions(count=5, limit=None, share=0.3, all=False, order="none")


@for_each(
    ("text", "size"),
    [
        ("134217728", 2**27),
        ("128MB", 2**27),
        ("128 mib", 2**27),
        ("128m", 2**27),
        ("1.5GiB", 3 * 2**29),
        ("2 t", 2**41),
        ("7b", 7),
    ],
)
def test_a_size_may_have_a_unit_which_is_a_power_of_1024_as_in_spark(text, size):
    assert parsed(target_bytes=text).size == size


@for_each("text", ["128 miles", "MB", "-1MB", "1e3MB", "0MB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(OptionError, match="a whole number of bytes, such as 134217728 or 128MB"):
        parsed(target_bytes=text)
    with pytest.raises(OptionError):
        parsed(min_input_files="5k")


@pytest.mark.parametrize("form", [str, lambda value: value])
def test_values_are_taken_as_text_or_typed(form):
    options = parsed(
        min_input_files=form(7),
        max_files=form(9),
        delete_ratio=form(0.5),
        rewrite_all=form(True),
        job_order="bytes-asc",
    )
    assert options == SomeOptions(count=7, limit=9, share=0.5, all=True, order="bytes-asc")


@for_each("text", ["true", "TRUE", "True", "1"])
def test_true_is_written_in_several_ways(text):
    assert parsed(rewrite_all=text).all is True
    assert parsed(rewrite_all={"1": "0"}.get(text, "FALSE")).all is False


@pytest.mark.parametrize("text", ["bytes-asc", "BYTES-ASC", "Bytes-Asc", "BYTES_ASC", "bytes_asc"])
def test_a_choice_may_be_written_in_any_case_and_with_underscores(text):
    assert parsed(job_order=text).order == "bytes-asc"


def test_options_that_are_parsed_already_are_returned():
    options = SomeOptions(count=9)
    assert parse_options(SomeOptions, options) is options


@for_each(
    ("name", "given", "message"),
    [
        ("min-input-files", "0", "option min-input-files is '0'; give a whole number >= 1"),
        ("min-input-files", "-3", "option min-input-files is '-3'; give a whole number >= 1"),
        ("min-input-files", "many", "option min-input-files is 'many'; give a whole number"),
        ("min-input-files", "1.5", "option min-input-files is '1.5'; give a whole number"),
        ("min-input-files", "", "option min-input-files is ''; give a whole number"),
        ("min-input-files", True, "option min-input-files is True; give a whole number"),
        ("min-input-files", None, "option min-input-files is None; give a whole number"),
        ("max-files", "0", "option max-files is '0'; give a whole number >= 1"),
        ("max-files", "many", "option max-files is 'many'; give a whole number"),
        ("delete-ratio", "0", "option delete-ratio is '0'; give a number > 0.0"),
        ("delete-ratio", "1.01", "option delete-ratio is '1.01'; give a number <= 1.0"),
        ("delete-ratio", "nan", "option delete-ratio is 'nan'; give a number > 0.0"),
        ("rewrite-all", "yes", "option rewrite-all is 'yes'; give true or false"),
        ("job-order", "size", "option job-order is 'size'; give one of none, bytes-asc"),
        ("job-order", None, "option job-order is None; give one of none, bytes-asc"),
    ],
)
def test_a_wrong_option_is_refused_and_the_error_says_what_to_give(name, given, message):
    with pytest.raises(OptionError) as raised:
        parse_options(SomeOptions, {name: given})
    assert raised.value.message == message
    assert raised.value.exit_status == 2
    assert raised.value.facts["option"] == name


KNOWN = "one of delete-ratio, job-order, max-files, min-input-files, rewrite-all, target-bytes"


@for_each(
    ("name", "hint"),
    [
        ("min_input_files", "did you mean 'min-input-files'?"),
        ("min-input-file", "did you mean 'min-input-files'?"),
        ("Rewrite-All", "did you mean 'rewrite-all'?"),
        ("colour", f"give {KNOWN}"),
        ("", f"give {KNOWN}"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_and_what_may_be_meant_is_named(name, hint):
    with pytest.raises(OptionError) as raised:
        parse_options(SomeOptions, {name: "1"})
    assert raised.value.message == f"there is no option {name!r}; {hint}"
    assert raised.value.facts == {"option": name, "given": "1", "expected": KNOWN}


def test_options_of_another_job_are_a_mistake_of_ours():
    with pytest.raises(AssertionError):
        parse_options(SomeOptions, OtherOptions())
