import unittest
from decimal import Decimal

from ledger.report import report, totals

LINES = [
    "2024-03-01,food,0.10",
    "2024-03-02,food,0.20",
    '2024-03-02,rent,"1,204.50"',
    "2024-03-03,rent,(4.50)",
    "2024-03-04,books,0.30",
]


class ReportTest(unittest.TestCase):
    def test_totals_are_exact(self):
        self.assertEqual(
            totals(LINES), {"food": Decimal("0.30"), "rent": Decimal("1200.00"), "books": Decimal("0.30")}
        )

    def test_the_largest_total_comes_first_and_equal_ones_by_name(self):
        names = [line.split()[0] for line in report(LINES).splitlines()]
        self.assertEqual(names, ["rent", "books", "food"])

    def test_totals_have_two_decimals(self):
        self.assertEqual(report(LINES).splitlines()[0].split()[1], "1200.00")


if __name__ == "__main__":
    unittest.main()
