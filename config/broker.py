"""What a broker URL may be, and the same server as redis-py names it."""

from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit

from team.model.errors import ConfigurationInvalid

_SCHEMES = ("redis", "rediss", "redis+socket")


def redis_url(broker_url: str | None) -> str:
    """The URL of the broker's server for redis-py; Celery's ``redis+socket://`` becomes ``unix://``.

    Raises:
        ConfigurationInvalid: No URL is set, or Celery's Redis transport could not use it.
    """
    if not broker_url:
        raise ConfigurationInvalid("no broker is configured: set TEAM_BROKER_URL, such as redis://127.0.0.1:6379/0")
    parts = _parts(broker_url)
    if parts is None:
        raise ConfigurationInvalid(
            "TEAM_BROKER_URL is not usable: give redis://HOST:PORT/DB, rediss://... or redis+socket:///PATH"
        )
    if parts.scheme != "redis+socket":
        return broker_url
    database = parse_qs(parts.query).get("virtual_host", ["0"])[0]
    return f"unix://{parts.path}?db={database}"


def celery_url(broker_url: str) -> str:
    """The URL as Celery's transport takes it: its certificate is checked unless the URL says that it is not.

    Left to itself the transport speaks TLS with whoever answers, when ``rediss://`` names no ``ssl_cert_reqs``.
    """
    parts = _parts(broker_url)
    if parts is None or parts.scheme != "rediss" or "ssl_cert_reqs" in parse_qs(parts.query):
        return broker_url
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, "ssl_cert_reqs=required")))))


def _parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    place = parts.path if parts.scheme == "redis+socket" else parts.hostname
    return parts if parts.scheme in _SCHEMES and place else None
