"""``python3 -m ledger < FILE``: print the report of a ledger."""

import sys

from ledger.report import report

print(report(sys.stdin))
