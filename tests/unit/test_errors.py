"""Every error has a code of its own and survives the way over the wire."""

import json

import pytest

from team.model.errors import InvalidArgument, TeamError, error_from, error_json, error_types

DESIGNED = frozenset(
    {
        "TEAM_LEAD_REQUIRED",
        "TEAM_NOT_MEMBER",
        "TEAM_INVALID_MEMBER_NAME",
        "TEAM_MEMBER_NAME_TAKEN",
        "TEAM_MEMBER_LIMIT",
        "TEAM_MEMBER_NOT_FOUND",
        "TEAM_SELF_MESSAGE",
        "TEAM_MESSAGE_TOO_LARGE",
        "TEAM_INBOX_FULL",
        "TEAM_TASK_NOT_FOUND",
        "TEAM_TASK_STALE_REVISION",
        "TEAM_TASK_DELETED",
        "TEAM_TASK_UNAUTHORIZED",
        "TEAM_TASK_ALREADY_CLAIMED",
        "TEAM_TASK_BLOCKED",
        "TEAM_TASK_INVALID_TRANSITION",
        "TEAM_TASK_HAS_DEPENDENTS",
        "TEAM_TASK_DEPENDENCY_CYCLE",
        "TEAM_TASK_LIMIT",
        "TEAM_INVALID_WRITE_SCOPE",
        "TEAM_INVALID_ARGUMENT",
        "TEAM_INVALID_TIMEOUT",
        "TEAM_INVALID_TARGET",
        "TEAM_WAIT_ABORTED",
        "TEAM_PROVISIONING_CONFLICT",
        "TEAM_DISPOSED",
        "TEAM_DISPOSAL_TIMEOUT",
        "TURN_FENCED",
        "FS_STALE_VERSION",
        "FS_NOT_OBSERVED",
        "FS_OUTSIDE_WORKSPACE",
    }
)


def test_no_two_errors_share_a_code() -> None:
    subclasses = TeamError.__subclasses__()
    assert len({error.code for error in subclasses}) == len(subclasses)
    assert error_types() == {error.code: error for error in subclasses}


@pytest.mark.parametrize("code", sorted(error_types()))
def test_an_error_comes_back_as_itself_from_what_a_client_reads(code: str) -> None:
    body = json.loads(error_json(code, "do \u2018this\u2019 next"))["error"]
    again = error_from(body["code"], body["message"])
    assert type(again) is error_types()[code]
    assert (again.code, again.message, str(again)) == (code, "do \u2018this\u2019 next", "do \u2018this\u2019 next")
    assert 400 <= again.status < 600


def test_an_error_of_a_newer_version_is_still_an_error() -> None:
    again = error_from("NOT_KNOWN_HERE", "text")
    assert type(again) is TeamError
    assert again.message == "text"


def test_a_second_error_with_a_taken_code_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match="TEAM_INVALID_ARGUMENT"):
        type("Twin", (TeamError,), {}, code=InvalidArgument.code, status=400)


def test_the_codes_of_the_design_are_all_there() -> None:
    assert set(error_types()) >= DESIGNED
