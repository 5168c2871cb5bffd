"""Whether one request body extends another, byte for byte: what keeps a provider's prompt cache warm."""

import json


def messages_end(body: bytes) -> int:
    """Where the messages array of a request body ends, its closing bracket not included."""
    text = body.decode()
    array = '"input":' if '"input":[' in text else '"messages":'
    start = text.index(f"{array}[") + len(array)
    _, end = json.JSONDecoder().raw_decode(text, start)
    return len(text[: end - 1].encode())


def assert_extends(before: bytes, after: bytes) -> None:
    """The later request is the earlier one with messages added to its array: no other byte differs."""
    old_end, new_end = messages_end(before), messages_end(after)
    assert after[:old_end] == before[:old_end]
    assert after[new_end:] == before[old_end:]
    assert new_end > old_end
