import unittest

from intervals import merge


class MergeTest(unittest.TestCase):
    def test_nothing(self):
        self.assertEqual(merge([]), [])

    def test_apart(self):
        self.assertEqual(merge([(5, 6), (1, 2)]), [(1, 2), (5, 6)])

    def test_overlapping_and_touching(self):
        self.assertEqual(merge([(1, 3), (2, 5), (5, 7)]), [(1, 7)])

    def test_one_inside_another(self):
        self.assertEqual(merge([(1, 10), (2, 3)]), [(1, 10)])


if __name__ == "__main__":
    unittest.main()
