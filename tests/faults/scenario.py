"""The work that Teams do under faults: what each member answers, as a scenario of the script model.

A job is a text such as ``a-2-17``: its letter says who does it, its numbers the Team and the job. It travels from a
person to the Lead, to its doer, to a reviewer, and back to the Lead, which answers it; a task of the board, a journal
line, a file that is written and edited, and a review go with it. Every step looks at what really happened: what has an
unknown outcome is looked at before it is done again, never simply repeated.
"""

from typing import Any, Final

import yaml

MEMBERS: Final = {"a": "alice", "b": "bob", "c": "carol"}
LETTERS: Final = "abcw"
"""``w``: the Lead waits for the answer inside its turn."""

READY: Final = "The Team is ready."
BROKEN: Final = "A teammate could not be made."
ANSWERED: Final = "answered "
FAILED: Final = "FAILED "

_THINK_MS: Final = 250
_VISITS: Final = 50_000

State = dict[str, Any]


def scenario_text() -> str:
    """The whole file."""
    names = list(MEMBERS.values())
    members = {name: _member(names[(place + 1) % len(names)]) for place, name in enumerate(names)}
    return yaml.safe_dump({"version": 1, "members": {"lead": _lead(), **members}}, sort_keys=False)  # pyright: ignore[reportUnknownMemberType]  # its stubs leave a type open


def journal(member: str) -> str:
    """The file, relative to the checkout, with one line per job that the member did."""
    return f"journal/{member}.txt"


def _call(tool: str, label: str | None = None, **args: Any) -> State:
    return {"tool": tool, **({"as": label} if label else {}), "args": args}


def _step(calls: list[State], following: list[State], say: str | None = None) -> State:
    return {
        **({"say": say} if say else {}),
        "think_ms": _THINK_MS,
        "max_visits": _VISITS,
        "calls": calls,
        "next": following,
    }


def _on(call: str, goto: str, save: State | None = None, **test: Any) -> State:
    return {"when": {"call": call, **test}, "goto": goto, **({"save": save} if save else {})}


def _failed(place: str) -> State:
    return {"say": f"{FAILED}${{job}} at {place}"}


def _message(goto: str, test: State, save: State | None = None) -> State:
    job = {"job": {"value": "${message.text}"}}
    return {"when": {"message": test}, "save": {**job, **(save or {})}, "goto": goto}


def _task(board: str, goto: str) -> State:
    """Go on with the task of the job, once the board shows it."""
    place = "tasks[subject=${job}]"
    save = {
        "task": {"call": board, "field": f"{place}.id"},
        "revision": {"call": board, "field": f"{place}.revision"},
    }
    return _on(board, goto, save, field=f"{place}.id")


def _update(label: str, action: str) -> State:
    return _call("team_task_update", label, task_id="${task}", expected_revision="${revision}", action=action)


def _lead() -> State:
    targets = [
        _message(
            "take",
            {"kind": "human", "regex": f"^{letter}-"},
            {"target": {"value": MEMBERS.get(letter, MEMBERS["a"])}, "after": {"value": letter}},
        )
        for letter in LETTERS
    ]
    dispatch = [
        *targets,
        _message("collect", {"kind": "team-message"}),
        {"goto": "idle"},
    ]
    more = _call("list_agents")
    spawns = [
        _call("spawn_teammate", name, name=name, description="Does jobs", prompt="begin") for name in MEMBERS.values()
    ]
    waiting = [
        {"when": {"message": {"kind": "team-message", "contains": "${job}"}}, "goto": "collect"},
        {"goto": "wait"},
    ]
    return {
        "start": "spawn",
        "on_message": dispatch,
        "states": {
            "spawn": _step(
                spawns,
                [
                    {"when": {"all": [{"call": name, "outcome": "ok"} for name in MEMBERS.values()]}, "goto": "ready"},
                    {"goto": "broken"},
                ],
            ),
            "ready": _step([more], dispatch, say=READY),
            "broken": {"say": BROKEN},
            "more": _step([more], dispatch),
            "idle": {"say": "I wait for a job."},
            "take": _step(
                [_call("team_task_create", "create", subject="${job}", description="A job.")],
                [_on("create", "give", outcome="ok"), {"goto": "not_taken"}],
            ),
            "give": _step(
                [_call("send_message", "send", target="${target}", message="${job}")],
                [
                    {
                        "when": {"all": [{"call": "send", "outcome": "ok"}, {"var": "after", "equals": "w"}]},
                        "goto": "wait",
                    },
                    _on("send", "more", outcome="ok"),
                    {"goto": "not_given"},
                ],
            ),
            "wait": _step([_call("wait_agent", timeout_ms=10_000)], waiting),
            "collect": _step(
                [_call("team_task_list", "board", status="completed", limit=100)],
                [_task("board", "remove"), {"goto": "not_completed"}],
            ),
            "remove": _step(
                [_update("delete", "delete")], [_on("delete", "answer", outcome="ok"), {"goto": "not_removed"}]
            ),
            "answer": _step([more], dispatch, say=f"{ANSWERED}${{job}}"),
            **{place: _failed(place) for place in ("not_taken", "not_given", "not_completed", "not_removed")},
        },
    }


def _member(reviewer: str) -> State:
    dispatch = [
        _message("find", {"from": "lead", "kind": "team-message"}),
        _message("review", {"kind": "team-message"}),
        {"goto": "idle"},
    ]
    book = journal("${member}")
    append = f"sleep 0.2; mkdir -p journal && echo ${{job}} >> {book} && echo APPENDED"
    look = f"if grep -qx -- ${{job}} {book}; then echo PRESENT; else echo ABSENT; fi"
    paper, review = "jobs/${job}.txt", "reviews/${job}.txt"
    return {
        "start": "more",
        "on_message": dispatch,
        "states": {
            "idle": {"say": "I wait for work."},
            "more": _step([_call("list_agents")], dispatch),
            "find": _step(
                [_call("team_task_list", "board", status="pending", limit=100)],
                [_task("board", "claim"), {"goto": "not_found"}],
            ),
            "claim": _step(
                [_update("claim", "claim")],
                [
                    _on("claim", "run", {"revision": {"call": "claim", "field": "revision"}}, outcome="ok"),
                    {"goto": "not_claimed"},
                ],
            ),
            "run": _step(
                [_call("bash", "run", command=append)],
                [_on("run", "write", outcome="ok", contains="APPENDED"), {"goto": "look"}],
            ),
            "look": _step(
                [_call("bash", "look", command=look)],
                [
                    _on("look", "write", outcome="ok", contains="PRESENT"),
                    _on("look", "run", outcome="ok", contains="ABSENT"),
                    {"goto": "look"},
                ],
            ),
            "write": _step(
                [_call("write", "write", path=paper, content="${job}\n")],
                [_on("write", "edit", outcome="ok"), {"goto": "reread"}],
            ),
            "reread": _step(
                [_call("read", "read", path=paper)],
                [
                    _on("read", "complete", outcome="ok", contains="${job} done"),
                    _on("read", "edit", outcome="ok", contains="${job}"),
                    {"goto": "write"},
                ],
            ),
            "edit": _step(
                [_call("edit", "edit", path=paper, old_text="${job}\n", new_text="${job} done\n")],
                [_on("edit", "complete", outcome="ok"), {"goto": "reread"}],
            ),
            "complete": _step(
                [_update("complete", "complete")],
                [_on("complete", "pass", outcome="ok"), {"goto": "not_completed"}],
            ),
            "pass": _step(
                [_call("send_message", "send", target=reviewer, message="${job}")],
                [_on("send", "more", outcome="ok"), {"goto": "not_passed"}],
            ),
            "review": _step(
                [_call("write", "write", path=review, content="${job} by ${member}\n")],
                [_on("write", "report", outcome="ok"), {"goto": "reread_review"}],
            ),
            "reread_review": _step(
                [_call("read", "read", path=review)],
                [_on("read", "report", outcome="ok", contains="${job} by"), {"goto": "review"}],
            ),
            "report": _step(
                [_call("send_message", "send", target="lead", message="${job}")],
                [_on("send", "more", outcome="ok"), {"goto": "not_reported"}],
            ),
            **{
                place: _failed(place)
                for place in ("not_found", "not_claimed", "not_completed", "not_passed", "not_reported")
            },
        },
    }
