"""Profiles: a model, tools, limits and prompt parts, as TOML. Shipped ones lie in ``config/profiles``."""

import tomllib
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

DEFAULT_QUEUE: Final = "turns"
_BROKERS_OWN: Final = ("unacked", "edge", "activity", "ping")
"""How keys begin that lie beside the queues in the broker."""

SHIPPED: Final = Path(__file__).parent / "profiles"


class ProfileError(ValueError):
    """A profile that does not exist or cannot be read; the text says what to do."""


def _own_name(queue: str) -> str:
    if queue.startswith(_BROKERS_OWN):
        raise ValueError(f"a queue's name cannot begin with {', '.join(_BROKERS_OWN)}")
    return queue


QueueName = Annotated[str, Field(pattern=r"\A[a-z0-9][a-z0-9_-]{0,63}\z"), AfterValidator(_own_name)]


class Profile(BaseModel):
    """What a Session may do and is told. ``prompt`` parts are joined by blank lines into the system prompt.

    ``allowed_models`` are those that a Lead may choose for a teammate; without any it chooses none. ``queues`` places
    turns by the name of their member: the first pattern that matches (``*`` stands for any text) names the queue.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    description: str
    model: str | None = None
    tools: tuple[str, ...]
    prompt: tuple[str, ...]
    max_steps: int | None = Field(default=None, ge=1)
    max_turn_seconds: float | None = Field(default=None, gt=0)
    context_windows: dict[str, int] = Field(default_factory=dict[str, int])
    allowed_models: tuple[str, ...] = ()
    queues: dict[str, QueueName] = Field(default_factory=dict[str, str])

    def __hash__(self) -> int:
        return hash((self.name, self.tools, self.prompt))

    @property
    def is_team(self) -> bool:
        """Whether its Sessions may lead and join Teams."""
        return "spawn_teammate" in self.tools

    def queue_of(self, member: str) -> str:
        """The queue of a member's turns."""
        return next((queue for pattern, queue in self.queues.items() if fnmatchcase(member, pattern)), DEFAULT_QUEUE)


@lru_cache(maxsize=64)
def load_profile(name: str, extra: Path | None = None) -> Profile:
    """Read a profile by name, deployment's own first. Raises ProfileError."""
    folders = [folder for folder in (extra, SHIPPED) if folder is not None]
    if name in profile_names(extra):
        for folder in folders:
            path = folder / f"{name}.toml"
            if path.is_file():
                return _read(path, name)
    raise ProfileError(f"There is no profile {name!r}; choose one of: {', '.join(profile_names(extra))}.")


def profile_names(extra: Path | None = None) -> list[str]:
    folders = [folder for folder in (extra, SHIPPED) if folder is not None and folder.is_dir()]
    return sorted({path.stem for folder in folders for path in folder.glob("*.toml")})


def _read(path: Path, name: str) -> Profile:
    try:
        return Profile.model_validate({"name": name, **tomllib.loads(path.read_text(encoding="utf-8"))})
    except (tomllib.TOMLDecodeError, ValidationError, OSError) as error:
        raise ProfileError(f"The profile {path} cannot be used: {error}") from error
