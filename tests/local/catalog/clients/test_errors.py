"""What an error proves; most of the rules are shown over HTTP in `test_rest_faults.py`, and with Glue in `test_glue.py`."""

import msgspec
import pytest
from botocore.exceptions import ClientError

from icekeep.catalog.clients.errors import described, proved_rejection, read_failure
from icekeep.catalog.clients.refusals import CommitRefused, Refusal
from icekeep.errors import NotFoundError, UnavailableError, UnsupportedError, UsageError
from kit.cases import for_each

SECRETS = {"token": "hunter2secret", "s3.secret-access-key": "s3cr3t", "uri": "http://host", "credential": "id:pw"}


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
    assert proved_rejection(error, "prod", {}) is None


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
    assert type(proved_rejection(error, "prod", {})) is kind


def test_an_endpoint_that_the_server_does_not_have_was_not_asked():
    error = NotImplementedError("the server does not support endpoint POST ...")
    assert isinstance(proved_rejection(error, "prod", {}), UnsupportedError)


def test_secrets_are_cut_out_of_messages():
    text = described(ValueError("token hunter2secret and s3cr3t with id:pw at http://host\nmore"), SECRETS)
    assert text == "token *** and *** with *** at http://host"
    assert described(ValueError("no client hunter2 with password"), {"credential": "name:password"}) == (
        "no client hunter2 with ***"
    )


def test_an_answer_that_is_not_the_protocols_is_told_in_one_line_with_its_place():
    failure = read_failure(answer_error(), "prod", {})
    assert isinstance(failure, UnsupportedError)
    assert failure.message == (
        "catalog 'prod' answered what the protocol does not say: Expected `int`, got `str` - at `$[...]`"
    )


def test_a_failed_read_is_unavailable_and_an_error_of_ours_stays_itself():
    ours = NotFoundError("not there")
    assert read_failure(ours, "prod", {}) is ours
    failure = read_failure(ConnectionResetError("reset"), "prod", {})
    assert isinstance(failure, UnavailableError)
    assert failure.message == "catalog 'prod' cannot be asked: reset"
