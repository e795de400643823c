"""Finds the credentials of an object store where other programs of this host look for them.

The environment has them, or a file of profiles. Without both, delta-rs, obstore, and Spark each ask
their own providers, such as the role of this host. Credentials are never in `walgate.toml`.

Source: AWS SDKs and Tools Reference Guide, "Environment variables", "Shared config and credentials
files".
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_ID, _SECRET, _TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_FILE, _PROFILE = "AWS_SHARED_CREDENTIALS_FILE", "AWS_PROFILE"
_USUAL_FILE, _USUAL_PROFILE = "~/.aws/credentials", "default"


class NoCredentials(OSError):
    """The credentials that the environment names cannot be read."""


@dataclass(frozen=True, slots=True)
class StoreCredentials:
    """A key of an object store. The token is empty for a key that does not expire."""

    key_id: str
    secret: str
    token: str = ""

    def __repr__(self) -> str:
        """Hide the secret, so that no message shows it."""
        return f"StoreCredentials({self.key_id!r})"

    def name_options(self) -> dict[str, str]:
        """The credentials under the names that delta-rs gives them."""
        named = {"aws_access_key_id": self.key_id, "aws_secret_access_key": self.secret}
        return named | ({"aws_session_token": self.token} if self.token else {})


def name_variables(credentials: StoreCredentials | None) -> dict[str, str]:
    """The credentials under the names of environment variables; nothing without credentials."""
    if credentials is None:
        return {}
    named = {_ID: credentials.key_id, _SECRET: credentials.secret}
    return named | ({_TOKEN: credentials.token} if credentials.token else {})


def find_credentials(environ: Mapping[str, str]) -> StoreCredentials | None:
    """Find the credentials of this host; None if only the libraries can find them.

    Raises: NoCredentials if the environment names a file that cannot be read, or a profile that the
    file lacks.
    """
    if environ.get(_ID) and environ.get(_SECRET):
        return StoreCredentials(environ[_ID], environ[_SECRET], environ.get(_TOKEN, ""))
    is_named = bool(environ.get(_FILE) or environ.get(_PROFILE))
    file = Path(environ.get(_FILE) or _USUAL_FILE).expanduser()
    if not is_named and not file.is_file():
        return None
    return _read_profile(file, environ.get(_PROFILE) or _USUAL_PROFILE, is_named=is_named)


def _read_profile(file: Path, profile: str, *, is_named: bool) -> StoreCredentials | None:
    profiles = configparser.RawConfigParser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        # Callers would take FileNotFoundError for a missing object.
        raise NoCredentials(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}"
        ) from error
    try:
        profiles.read_string(text)
    except configparser.Error:
        # The error of the parser repeats the line, which may have the secret.
        raise NoCredentials(f"{file} is no file of profiles with credentials") from None
    found = dict(profiles[profile]) if profiles.has_section(profile) else {}
    names = ("aws_access_key_id", "aws_secret_access_key")
    if all(found.get(name) for name in names):
        key_id, secret = (found[name] for name in names)
        return StoreCredentials(key_id, secret, found.get("aws_session_token", ""))
    if is_named:
        raise NoCredentials(f"profile {profile} in {file} lacks {' and '.join(names)}")
    return None
