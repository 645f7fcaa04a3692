"""Storage options: what may be said on the command line, and what must not."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardprep.errors import ConfigError

# A word in an option's name that means a secret, unless the option is the place where one is kept.
_SECRET_WORDS = frozenset(
    {"secret", "password", "passwd", "passphrase", "token", "sas", "credential", "credentials", "signature"}
)
_SECRET_NAMES = frozenset(
    {
        "key",
        "access_key",
        "access_key_id",
        "account_key",
        "api_key",
        "connection_string",
        "keyid",
        "master_key",
        "pkey",
        "private_key",
        "service_account_key",
        "sse_customer_key",
        "sse_customer_key_base64",
        "storage_account_key",
        "storage_key",
    }
)
_PLACES = frozenset({"file", "filename", "path", "uri", "url", "endpoint"})
_HARMLESS = frozenset({"skip_signature", "signature_version"})
_PREFIXES = re.compile(r"^(aws|azure|azure_storage|google)_")


def check_no_secrets(uri: str, options: Mapping[str, str]) -> None:
    """Raise ConfigError if an option, or the URI, holds a secret: it would be shipped to workers, and printed."""
    for name in options:
        if is_secret(name):
            raise ConfigError(
                f'the storage option "{name}" is a secret, and options are logged and shipped to workers. Leave it '
                "out, and put it where every worker finds it: the environment (AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, AZURE_STORAGE_ACCOUNT_KEY, GOOGLE_APPLICATION_CREDENTIALS), a profile, or the "
                "machine's role."
            )
    for what in (uri, *options.values()):
        host = what.split("://", 1)[1].split("/", 1)[0] if "://" in what else ""
        user, at, _ = host.rpartition("@")
        if at and ":" in user:
            shown = what.replace(user, "...")
            raise ConfigError(f"a URI must not hold a password, got {shown}: put it into the environment or a key file")


def is_secret(name: str) -> bool:
    """Return whether an option of this name holds a secret."""
    plain = _PREFIXES.sub("", name.lower().replace("-", "_"))
    if plain in _HARMLESS:
        return False
    words = plain.split("_")
    return plain in _SECRET_NAMES or (bool(_SECRET_WORDS & set(words)) and words[-1] not in _PLACES)


def flag(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return an option that is yes or no. Raises ConfigError for another word."""
    word = options.get(name, str(default)).lower()
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off", ""):
        return False
    raise ConfigError(f'the storage option "{name}" is true or false, got "{options[name]}"')


def requester_pays(options: Mapping[str, str]) -> bool:
    """Return whether the caller pays for requests: request_payer=requester, or requester_pays=true."""
    payer = options.get("request_payer", "")
    if payer not in ("", "requester") and payer.lower() not in ("true", "false"):
        raise ConfigError(f'the storage option "request_payer" is "requester" or nothing, got "{payer}"')
    return payer.lower() in ("requester", "true") or flag(options, "requester_pays")
