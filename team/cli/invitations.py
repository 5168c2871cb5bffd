"""Commands about external members: invite, revoke, and be the MCP server of one."""

import importlib.util
import json
from pathlib import Path

from config.settings import Settings
from team.cli.faults import DONE
from team.cli.inspection import connected
from team.cli.places import data_dir_of, live_stack, workspace_of
from team.model.errors import ConfigurationInvalid


def invite(settings: Settings, team_id: str, name: str, description: str, *, as_json: bool) -> int:
    """Print the token of a new invitation, once."""
    with connected(settings) as operator:
        answer = operator.invite(team_id, name, description)
    if as_json:
        print(json.dumps(answer))
        return DONE
    print(f"{name} is a member of {team_id}. Its token, shown only now:\n{answer['token']}")
    print("Give it to the outside agent as TEAM_INVITE_TOKEN of `team mcp`.")
    return DONE


def revoke(settings: Settings, team_id: str, name: str, *, as_json: bool) -> int:
    """End an invitation."""
    with connected(settings) as operator:
        answer = operator.revoke_invite(team_id, name)
    done = "revoked" if answer.get("revoked") else f"{name} had no invitation"
    print(json.dumps(answer) if as_json else done)
    return DONE


def serve(settings: Settings, *, http_port: int | None) -> int:
    """Be the MCP server of the member whose token is configured.

    Raises:
        ConfigurationInvalid: The extra is not installed, no token is set, or no coordinator is known.
    """
    if importlib.util.find_spec("mcp") is None:
        raise ConfigurationInvalid(
            "`team mcp` needs the MCP library: install it with pip install 'celery-agent-teams[mcp]'."
        )
    if settings.invite_token is None:
        raise ConfigurationInvalid("Set TEAM_INVITE_TOKEN to the token that `team invite` printed.")
    from team.cli import mcp_server  # noqa: PLC0415  # an extra that other commands do without

    url, token = _coordinator(settings), settings.invite_token.get_secret_value()
    if http_port is None:
        mcp_server.serve_stdio(url, token)
    else:
        mcp_server.serve_http(url, token, http_port)
    return DONE


def _coordinator(settings: Settings) -> str:
    if settings.coordinator_url is not None:
        return settings.coordinator_url
    record = live_stack(data_dir_of(settings, workspace_of(settings, Path.cwd())))
    if record is None:
        raise ConfigurationInvalid("No coordinator runs here; start `team up`, or set TEAM_COORDINATOR_URL.")
    return record.url
