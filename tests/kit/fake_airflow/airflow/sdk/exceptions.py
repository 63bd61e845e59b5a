"""The two exceptions that our operator tells apart."""


class AirflowException(Exception):
    """A failure that may be retried."""


class AirflowFailException(AirflowException):
    """A failure that may not."""
