"""The exceptions that our operators tell apart."""


class AirflowException(Exception):
    """A failure that may be retried."""


class AirflowFailException(AirflowException):
    """A failure that may not."""


class AirflowSensorTimeout(AirflowException):
    """What was waited for did not come."""


class AirflowSkipException(AirflowException):
    """There was nothing to do."""
