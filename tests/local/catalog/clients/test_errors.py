"""What an error proves; most of the rules are shown over HTTP in `test_rest_faults.py`, and with Glue in `test_glue.py`."""

import pytest
from botocore.exceptions import ClientError
from pydantic import BaseModel, ValidationError
from pyiceberg.exceptions import RESTError

from icekeep.catalog.clients.errors import described, is_model_error, proved_rejection, read_failure
from icekeep.errors import NotFoundError, UnavailableError, UnsupportedError, UsageError

SECRETS = {"token": "hunter2secret", "s3.secret-access-key": "s3cr3t", "uri": "http://host", "credential": "id:pw"}


class Model(BaseModel):
    number: int


def model_error():
    with pytest.raises(ValidationError) as raised:
        Model(number="x")
    return raised.value


@pytest.mark.parametrize(
    "error", [ValueError("x"), RESTError("x"), OSError("x"), RuntimeError(), model_error(), TimeoutError("x")]
)
def test_an_error_that_nobody_listed_proves_nothing(error):
    assert proved_rejection(error, "prod", {}) is None


@pytest.mark.parametrize(
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
    error = NotImplementedError("Server does not support endpoint: POST ...")
    assert isinstance(proved_rejection(error, "prod", {}), UnsupportedError)


def test_secrets_are_cut_out_of_messages():
    text = described(ValueError("token hunter2secret and s3cr3t with id:pw at http://host\nmore"), SECRETS)
    assert text == "token *** and *** with *** at http://host"


def test_a_model_error_is_told_in_one_line_with_its_place():
    error = model_error()
    wrapped = ValueError("\nlong\ntrace")
    wrapped.__cause__ = error
    assert is_model_error(error)
    assert is_model_error(wrapped)
    assert described(wrapped, {}).startswith("number: Input should be a valid integer")
    failure = read_failure(wrapped, "prod", {})
    assert isinstance(failure, UnsupportedError)
    assert failure.message.startswith("catalog 'prod' answered what PyIceberg cannot read: number: ")


def test_a_failed_read_is_unavailable_and_an_error_of_ours_stays_itself():
    ours = NotFoundError("not there")
    assert read_failure(ours, "prod", {}) is ours
    failure = read_failure(ConnectionResetError("reset"), "prod", {})
    assert isinstance(failure, UnavailableError)
    assert failure.message == "catalog 'prod' cannot be asked: reset"
