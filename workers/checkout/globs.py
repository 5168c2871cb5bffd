"""Globs as regular expressions over relative posix paths."""

import re

from team.model.errors import InvalidArgument


def glob_regex(pattern: str) -> str:
    """The regular expression that a whole relative path must match.

    ``*`` and ``?`` stay within one component, ``**`` spans any number of them, ``[...]`` and ``{a,b}`` work as in a
    shell.

    Raises:
        InvalidArgument: The pattern is absolute, leaves its directory, or has an unclosed bracket or brace.
    """
    pattern = pattern.removeprefix("./")
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise InvalidArgument("pattern is relative to path: give the directory as path and a pattern without '..'.")
    result = _translate(pattern)
    try:
        re.compile(result)
    except re.error as error:
        raise InvalidArgument(f"{pattern!r} is not a glob: {error}.") from error
    return result


def _translate(pattern: str) -> str:
    parts: list[str] = []
    depth = 0
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        match char:
            case "*" if pattern.startswith("*", at):
                at += 1
                whole = at < 3 or pattern[at - 3] in "/{,"
                if whole and pattern.startswith("/", at):
                    at += 1
                    parts.append("(?:[^/]+/)*")
                else:
                    parts.append(".*")
            case "*":
                parts.append("[^/]*")
            case "?":
                parts.append("[^/]")
            case "[":
                end = pattern.find("]", at + (2 if pattern[at : at + 1] in {"!", "^"} else 1))
                if end < 0:
                    raise InvalidArgument(f"{pattern!r} is not a glob: '[' is not closed.")
                body = pattern[at:end].replace("\\", "\\\\").replace("[", "\\[")
                negated = body[:1] in {"!", "^"}
                parts.append(f"(?!/)[{'^' if negated else ''}{body[1:] if negated else body}]")
                at = end + 1
            case "{":
                depth += 1
                parts.append("(?:")
            case "}" if depth:
                depth -= 1
                parts.append(")")
            case "," if depth:
                parts.append("|")
            case "\\" if at < len(pattern):
                parts.append(re.escape(pattern[at]))
                at += 1
            case _:
                parts.append(re.escape(char))
    if depth:
        raise InvalidArgument(f"{pattern!r} is not a glob: '{{' is not closed.")
    return "".join(parts)
