"""What may be reached from where: secrets that everybody knows serve on loopback only."""

import ipaddress
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from team.model.errors import ConfigurationInvalid

EXAMPLE: Final = "example-"
"""How the secrets of ``.env.example`` begin: good for a look on one's own machine, and for nothing else."""


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own, which no other machine can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def require_token(token: SecretStr | None, variable: str) -> SecretStr:
    """A token that is really set. Raises ConfigurationInvalid: nothing is ever served without one."""
    if token is None or not token.get_secret_value().strip():
        raise ConfigurationInvalid(f"{variable} is not set: choose a long random value and set it for every process.")
    return token


def require_private(address: str, secrets: Iterable[SecretStr | None]) -> None:
    """Refuse to serve elsewhere than on loopback with the secrets of the example. Raises ConfigurationInvalid."""
    if not is_loopback(address) and any(secret and EXAMPLE in secret.get_secret_value() for secret in secrets):
        raise ConfigurationInvalid(
            f"The secrets of .env.example are in use and {address} is not loopback: put random ones into .env "
            "(`make env` writes such a file)."
        )


def require_certificate(certificate: Path | None, key: Path | None) -> None:
    """Refuse half of a pair, and one that TLS cannot use. Raises ConfigurationInvalid."""
    if (certificate is None) != (key is None):
        raise ConfigurationInvalid("TEAM_TLS_CERT and TEAM_TLS_KEY belong together: set both or neither.")
    if certificate is None or key is None:
        return

    def no_password() -> str:
        raise ConfigurationInvalid(f"{key} is locked with a password: TEAM_TLS_KEY needs a key without one.")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, no_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationInvalid(
            f"TEAM_TLS_CERT {certificate} with TEAM_TLS_KEY {key} cannot be used ({error.strerror or error}): give a "
            "PEM certificate chain and its own private key, both readable by this user."
        ) from error
