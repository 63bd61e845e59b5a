"""The addresses that messages are sent to: whether `apprise` is installed and takes them. Nothing is sent."""

from collections.abc import Mapping, Sequence
from functools import partial

from icekeep.operations.configuration.file import resolve_references
from icekeep.operations.configuration.receivers import NOTIFICATIONS, NotificationSettings
from icekeep.operations.doctor.findings import Notes
from icekeep.telemetry.notifications import checked_receiver, shown_address


def look_at_notifications(
    notes: Notes, notifications: Sequence[NotificationSettings], environ: Mapping[str, str]
) -> None:
    """Look at each address of the configuration."""
    for one in notifications:
        notes.look(NOTIFICATIONS, shown_address(one.url), partial(_checked, one, environ))


def _checked(one: NotificationSettings, environ: Mapping[str, str]) -> str:
    checked_receiver(resolve_references(one.key_path, one.url, environ))
    of = "any command" if one.jobs is None else ", ".join(sorted(one.jobs))
    return f"the address is well formed, nothing was sent; for {', '.join(sorted(one.when))} of {of}"
