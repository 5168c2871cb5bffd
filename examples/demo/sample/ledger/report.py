"""Totals per category."""

import csv

from ledger.amounts import parse_amount


def totals(lines):
    """Map each category to the sum of its amounts."""
    sums = {}
    for _, category, amount in csv.reader(lines):
        sums[category] = sums.get(category, 0) + float(parse_amount(amount))
    return sums


def report(lines):
    """One line per category: its name and its total with two decimals."""
    return "\n".join(f"{category:<12}{total:>12.2f}" for category, total in totals(lines).items())
