"""Every deployment choice, from the environment (``TEAM_*``), which nothing else reads.

No file of the current directory is read: that directory is the checkout to work on, and a checkout, which may be
anybody's, must not choose where a provider key is sent.
"""

from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

Settlement = Literal["silent", "always", "off"]
Sandbox = Literal["auto", "on", "off"]
LogFormat = Literal["keyvalue", "json"]


class Settings(BaseSettings):
    """Settings of one deployment; every process of it reads the same ones.

    Times are in seconds, sizes in UTF-8 bytes. With nothing set the product runs embedded: SQLite and a Valkey
    server under ``data_dir``.
    """

    # An empty variable is one that is not set: compose files pass every variable on.
    model_config = SettingsConfigDict(env_prefix="TEAM_", env_ignore_empty=True, extra="ignore", frozen=True)

    data_dir: Path = Field(
        default_factory=lambda: Path.home() / ".local" / "share" / "celery-agent-teams",
        description="Where the embedded stack keeps its database, broker socket, tokens and logs.",
    )
    database_url: str | None = Field(
        default=None, description="SQLAlchemy URL; default SQLite in data_dir. PostgreSQL: postgresql+psycopg://..."
    )
    broker_url: str | None = Field(default=None, description="Redis or Valkey URL; default the embedded server.")
    key_prefix: str = Field(default="team:", description="Prefix of every Redis key and channel of this deployment.")

    host: str = Field(default="127.0.0.1", description="Address the coordinator listens on.")
    port: int = Field(default=8765, ge=0, le=65535, description="Port of the coordinator.")
    coordinator_url: str | None = Field(default=None, description="URL at which workers and the CLI reach it.")
    allowed_hosts: str = Field(
        default="", description="Names besides its own by which clients may call the coordinator, comma-separated."
    )
    published_on: str | None = Field(
        default=None, description="Address on which a container's port is published, when it is not the host setting."
    )
    tls_cert: Path | None = Field(
        default=None, description="Certificate chain (PEM) with which the coordinator serves HTTPS; with its tls_key."
    )
    tls_key: Path | None = Field(default=None, description="The certificate's private key (PEM), without a password.")
    operator_token: SecretStr | None = Field(default=None, description="Bearer token of the public API.")
    viewer_token: SecretStr | None = Field(default=None, description="Bearer token that may read and change nothing.")
    worker_token: SecretStr | None = Field(default=None, description="Bearer token of the worker API.")
    invite_token: SecretStr | None = Field(default=None, description="Token of an external member, for `team mcp`.")

    log_format: LogFormat = Field(
        default="keyvalue", description="Form of log lines: key=value pairs to read, or JSON objects to collect."
    )

    workspace_root: Path = Field(
        default_factory=Path.cwd, description="The shared checkout; every Session's directory lies inside it."
    )
    profile_dir: Path | None = Field(default=None, description="More profiles (*.toml), searched before the shipped.")
    model: str | None = Field(default=None, description="Default model, such as openai-chat:NAME or script:FILE.")
    model_base_url: str | None = Field(default=None, description="Base URL of an OpenAI-compatible server.")
    provider_keys_file: Path | None = Field(
        default=None, description="File with NAME=VALUE lines of provider API keys; a worker reads and forgets it."
    )

    worker_name: str | None = Field(
        default=None, description="Name of a worker, unique in its deployment; default its host and process id."
    )
    queues: str = Field(default="turns", description="Comma-separated Celery queues that a worker serves.")
    liveness_seconds: float = Field(
        default=10.0, gt=0, description="Time for a worker's own ping to come back; twice too late, it ends itself."
    )
    sandbox: Sandbox = Field(
        default="auto",
        description="Whether commands are confined with bubblewrap: on refuses to start a worker where that cannot be.",
    )
    sandbox_writable: str = Field(
        default="", description="Directories besides the workspace in which confined commands may write, by commas."
    )
    stall_seconds: float = Field(
        default=60.0, ge=1.0, description="Time a worker's event loop may stand still before the worker ends itself."
    )
    health_file: Path | None = Field(
        default=None, description="A worker touches it whenever its own ping came back; for health checks."
    )
    flower_user: str = Field(default="operator", description="User name of Flower's basic authentication.")
    flower_password: SecretStr | None = Field(default=None, description="Its password; Flower starts with none.")
    fault_points: str | None = Field(
        default=None, description="For fault tests: NAME:NTH[,...] kills the process at the nth passage of a point."
    )
    fault_dir: Path | None = Field(
        default=None, description="For fault tests: a file in it that bears the name of a point kills who reaches it."
    )
    slots: int = Field(default=8, ge=1, le=256, description="Turns that one worker process runs at once.")
    lease_seconds: float = Field(default=15.0, ge=1.0, le=600.0, description="Life of a claim without a heartbeat.")
    drain_seconds: float = Field(default=30.0, ge=0.0, description="How long SIGTERM lets a worker finish its steps.")
    poison_losses: int = Field(default=3, ge=1, description="Lost workers without a step after which a turn fails.")
    dispatch_backoff_seconds: float = Field(default=2.0, gt=0, description="First delay before a turn is sent again.")
    dispatch_backoff_max_seconds: float = Field(default=60.0, gt=0, description="Longest delay between two sends.")
    sweep_seconds: float = Field(
        default=1.0, ge=0, description="Period of the sweep for missed edges and due dispatches; 0 turns it off."
    )

    max_members: int = Field(default=8, ge=1)
    max_depth: int = Field(default=3, ge=1, description="Levels of children below a root; deeper ones are refused.")
    max_workflow_agents: int = Field(
        default=200, ge=1, le=1_000, description="Agents that one workflow may ask for, all its phases together."
    )
    max_workflow_width: int = Field(default=16, ge=1, le=256, description="Agents of one workflow that run at once.")
    max_workflow_notes: int = Field(default=500, ge=1, le=10_000, description="Progress records of one workflow.")
    max_workflow_script_bytes: int = Field(default=65_536, ge=1_024, le=262_144)
    workflow_run_seconds: float = Field(
        default=5.0, gt=0, le=60, description="Time a workflow's script may run between two waits."
    )
    workflow_memory_bytes: int = Field(
        default=67_108_864, ge=8_388_608, description="Memory a workflow's script may use."
    )
    max_tasks: int = Field(default=256, ge=1)
    max_message_bytes: int = Field(default=65_536, ge=256)
    max_inbox: int = Field(default=64, ge=1)
    max_steps: int = Field(default=200, ge=1, description="Steps of one turn before it ends max-steps.")
    max_turn_seconds: float | None = Field(
        default=None, gt=0, description="Time from a turn's first claim after which it takes no further step."
    )
    max_team_turns: int | None = Field(
        default=5_000, ge=1, description="Turns of a Team, all its members together, after a human prompt."
    )
    max_team_tokens: int | None = Field(
        default=None, ge=1, description="Tokens that a Team may use, all its members together, after a human prompt."
    )
    max_team_seconds: float | None = Field(
        default=None, gt=0, description="Time after a human prompt in which a Team may take further steps."
    )
    context_windows: dict[str, int] = Field(
        default_factory=dict[str, int],
        description='Context windows in tokens by model, as JSON: {"vllm:*": 32768}; 0 turns compaction off.',
    )
    output_bytes: int = Field(default=30_000, ge=1_000, description="Tool output that a model sees; the rest spills.")
    database_wait_seconds: float = Field(
        default=60.0, ge=0, description="How long a coordinator that starts waits for a database that is away."
    )
    disposal_seconds: float = Field(default=5.0, gt=0)
    settlement: Settlement = Field(default="silent", description="When a member's ended turn notifies the Lead.")
    request_timeout_seconds: float = Field(default=600.0, gt=0, description="Bound of one model request.")
    provider_attempts: int = Field(default=6, ge=1, description="Tries of one model request before the turn fails.")

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The queues of this worker, in order."""
        return tuple(name.strip() for name in self.queues.split(",") if name.strip())

    @property
    def host_names(self) -> tuple[str, ...]:
        """The allowed hosts, in order."""
        return tuple(name.strip() for name in self.allowed_hosts.split(",") if name.strip())

    @property
    def writable_directories(self) -> tuple[Path, ...]:
        """Where confined commands may write besides the workspace."""
        return tuple(Path(name.strip()).expanduser() for name in self.sandbox_writable.split(",") if name.strip())

    @property
    def sql_url(self) -> str:
        """The database URL, embedded SQLite by default."""
        return self.database_url or f"sqlite:///{self.data_dir / 'team.db'}"

    @property
    def url(self) -> str:
        """Where clients reach the coordinator."""
        scheme = "http" if self.tls_cert is None else "https"
        return self.coordinator_url or f"{scheme}://{self.host}:{self.port}"

    @property
    def heartbeat_seconds(self) -> float:
        return self.lease_seconds / 5


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once."""
    return Settings()
