"""``python -m team.api.probe URL``: a health check without a shell or another program; exit 0 when it answers 200."""

import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 4


def main(arguments: list[str]) -> int:
    """Ask the URL once; tells on stderr why it is not healthy."""
    try:
        with urllib.request.urlopen(arguments[0], timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 -- the URL is the operator's own
            return 0 if answer.status == 200 else 1  # noqa: PLR2004 -- HTTP
    except (urllib.error.URLError, OSError) as error:
        sys.stderr.write(f"not healthy: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
