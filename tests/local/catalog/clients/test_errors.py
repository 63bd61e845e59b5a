"""What an error proves; most of the rules are shown over HTTP in `test_rest_faults.py`, and with Glue in `test_glue.py`."""

import msgspec
import pytest
from botocore.exceptions import ClientError, NoCredentialsError
from requests.exceptions import InvalidHeader, InvalidURL
from thrift.Thrift import TApplicationException

from icekeep.catalog.clients.errors import CommitRefused, Refusal, described, proved_rejection, read_failure
from icekeep.errors import IcekeepBug, NotFoundError, UnavailableError, UnsupportedError, UsageError
from icekeep.secrets import MASK, remember
from kit.cases import for_each

SECRETS = {"token": "hunter2secret", "s3.secret-access-key": "s3cr3t", "uri": "http://host", "credential": "id:pw12"}


def answer_error():
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(b'{"number": "x"}', type=dict[str, int])
    return raised.value


@for_each(
    "error",
    [
        *(ValueError("x"), OSError("x"), RuntimeError(), TimeoutError("x")),
        *(Refusal("x"), CommitRefused("x"), answer_error()),
    ],
)
def test_an_error_that_nobody_listed_proves_nothing(error):
    assert proved_rejection(error, "prod") is None


@for_each(
    ("code", "kind"),
    [
        ("AccessDeniedException", UsageError),
        ("EntityNotFoundException", NotFoundError),
        ("ThrottlingException", UnavailableError),
        ("InternalServiceException", type(None)),
        ("SomethingNew", type(None)),
    ],
)
def test_glue_refuses_by_codes_of_its_own(code, kind):
    error = ClientError({"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {}}, "UpdateTable")
    assert type(proved_rejection(error, "prod")) is kind


def test_secrets_are_cut_out_of_messages():
    remember(SECRETS)
    text = described(ValueError("token hunter2secret and s3cr3t with id:pw12 at http://host\nmore"))
    assert text == f"token {MASK} and {MASK} with {MASK} at http://host"
    assert described(ValueError("no client pw12 with id")) == f"no client {MASK} with id"


def test_an_answer_that_is_not_the_protocols_is_told_in_one_line_with_its_place():
    failure = read_failure(answer_error(), "prod")
    assert isinstance(failure, UnsupportedError)
    assert failure.message == (
        "catalog 'prod' answered what the protocol does not say: Expected `int`, got `str` - at `$[...]`"
    )


def test_a_failed_read_is_unavailable_and_an_error_of_ours_stays_itself():
    ours = NotFoundError("not there")
    assert read_failure(ours, "prod") is ours
    failure = read_failure(ConnectionResetError("reset"), "prod")
    assert isinstance(failure, UnavailableError)
    assert failure.message == "catalog 'prod' cannot be asked: reset"


@for_each(
    "error",
    [NameError("name 'x' is not defined"), TypeError("%d format: a number is required"), RecursionError("too deep")],
)
def test_a_mistake_in_code_is_no_outage(error):
    failure = read_failure(error, "prod")
    assert isinstance(failure, IcekeepBug)
    assert failure.message.startswith(f"catalog 'prod': {error} ({type(error).__name__}); please report it")


@for_each(
    ("error", "kind"),
    [
        (
            TApplicationException(TApplicationException.UNKNOWN_METHOD, "Invalid method name: 'get_table'"),
            UnsupportedError,
        ),
        (TApplicationException(TApplicationException.INTERNAL_ERROR, "x"), UnavailableError),
        (InvalidHeader("Invalid header value"), UsageError),
        (InvalidURL("Failed to parse"), UsageError),
        (NoCredentialsError(), UsageError),
    ],
)
def test_what_trying_again_does_not_help_is_no_outage(error, kind):
    assert type(read_failure(error, "prod")) is kind
