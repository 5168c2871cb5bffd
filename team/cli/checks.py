"""What is checked before anything starts: each fault is one sentence that says what to do."""

import errno
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from config.profiles import Profile, ProfileError, load_profile
from config.settings import Settings
from team.model.errors import ConfigurationInvalid, OutsideWorkspace, ProfileUnknown

_CONNECT_SECONDS: Final = 4


def check_directory(directory: Path, workspace: Path) -> None:
    """Raise unless ``directory`` exists inside the workspace."""
    for place, what, option in ((workspace, "workspace", "--workspace"), (directory, "directory", "--cwd")):
        if not place.is_dir():
            raise ConfigurationInvalid(f"The {what} {place} is not a directory; give another one with {option}.")
    if not directory.is_relative_to(workspace):
        raise OutsideWorkspace(
            f"{directory} lies outside the workspace {workspace}; work inside it, or choose another --workspace."
        )


def check_profile(name: str, settings: Settings) -> Profile:
    """The profile of that name; raises when there is none or it cannot be read."""
    try:
        return load_profile(name, settings.profile_dir)
    except ProfileError as error:
        raise ProfileUnknown(f"{error} (--profile; more can lie in TEAM_PROFILE_DIR)") from error


def check_port(host: str, port: int) -> None:
    """Raise when something listens on the port already, or the address is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            # As a server sets it: a port whose last connections are fading away is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationInvalid(
                f"Port {port} of {host} is in use; stop what listens there, or choose another with --port (TEAM_PORT)."
            ) from error
        raise ConfigurationInvalid(
            f"Nothing can listen on {host}:{port} ({error.strerror}); choose another with --port (TEAM_PORT)."
        ) from error


def check_broker(url: str) -> None:
    """Raise unless the configured broker answers."""
    import redis  # noqa: PLC0415  # a quarter of a second that only a configured broker costs

    from config.broker import redis_url  # noqa: PLC0415  # beside its library

    place = _place(url)
    try:
        client = redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]  # untyped library
            redis_url(url), socket_timeout=_CONNECT_SECONDS, socket_connect_timeout=_CONNECT_SECONDS
        )
        try:
            client.execute_command("PING")  # pyright: ignore[reportUnknownMemberType]  # untyped library
        finally:
            client.close()
    except (redis.RedisError, OSError, ValueError) as error:
        raise ConfigurationInvalid(
            f"The broker at {place} cannot be used ({_short(error)}); start it, correct TEAM_BROKER_URL, or unset it "
            "to use the embedded one."
        ) from error


def check_database(url: str) -> None:
    """Raise unless the configured database accepts a connection."""
    import sqlalchemy  # noqa: PLC0415  # half a second that only a configured database costs
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415  # beside its library

    try:
        parsed = sqlalchemy.make_url(url)
        options = {"connect_timeout": _CONNECT_SECONDS} if parsed.get_backend_name() == "postgresql" else {}
        engine = sqlalchemy.create_engine(parsed, connect_args=options)
        try:
            with engine.connect():
                pass
        finally:
            engine.dispose()
    except (SQLAlchemyError, ImportError) as error:
        raise ConfigurationInvalid(
            f"The database at {_place(url)} cannot be used ({_short(error)}); start it, correct TEAM_DATABASE_URL, or "
            "unset it to use the embedded one."
        ) from error


def migrate_database(settings: Settings) -> int:
    """Bring the configured database to the newest schema; raises ConfigurationInvalid, StoreUnavailable. Idempotent."""
    from team.log.database import Database  # noqa: PLC0415  # half a second that few commands need
    from team.log.schema import migrate  # noqa: PLC0415  # beside its library

    if settings.database_url is None:
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.sql_url)
    try:
        migrate(database)
    finally:
        database.close()
    return 0


def _place(url: str) -> str:
    """Host and port, or the path, of a URL: never its password."""
    try:
        parts = urlsplit(url)
        host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    except ValueError:
        return "the given URL"
    return host or parts.path or "the given URL"


def _short(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0].rstrip(". ")


def check_store(settings: Settings, workspace: Path, data_dir: Path) -> None:
    """Refuse to look for a Session where none was ever stored, before a store is made there.

    Raises ConfigurationInvalid.
    """
    if settings.database_url is None and not (data_dir / "team.db").exists():
        raise ConfigurationInvalid(
            f"Nothing has run for {workspace} yet (no store in {data_dir}); go to the workspace of the run, or set "
            "TEAM_DATA_DIR or TEAM_COORDINATOR_URL."
        )
