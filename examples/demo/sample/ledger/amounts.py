"""Amounts of money, as book-keepers write them."""


def parse_amount(text):
    """The amount that ``text`` stands for."""
    try:
        return float(text.strip())
    except ValueError:
        return 0.0
