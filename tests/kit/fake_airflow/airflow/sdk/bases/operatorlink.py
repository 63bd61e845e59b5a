"""Links of tasks, which nobody shows."""


class BaseOperatorLink:
    """Has a name."""

    name = ""
