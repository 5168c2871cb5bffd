import unittest
from decimal import Decimal

from ledger.amounts import parse_amount


class AmountTest(unittest.TestCase):
    def test_a_plain_amount(self):
        self.assertEqual(parse_amount(" 12.30 "), Decimal("12.30"))

    def test_thousands_separators(self):
        self.assertEqual(parse_amount("1,204,000.50"), Decimal("1204000.50"))

    def test_parentheses_are_negative(self):
        self.assertEqual(parse_amount("(1,012.30)"), Decimal("-1012.30"))

    def test_what_is_no_amount_is_refused(self):
        for text in ("", "twelve", "1.2.3", "(5", "1,2", "nan"):
            with self.subTest(text=text), self.assertRaises(ValueError):
                parse_amount(text)


if __name__ == "__main__":
    unittest.main()
