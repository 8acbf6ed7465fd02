import unittest

from decode import lost_seconds, token_seconds

NEVER = (100.0, 100.0)


class DecodeTest(unittest.TestCase):
    def test_tokens_of_a_span(self) -> None:
        self.assertEqual(token_seconds([0, 1, 3, 4, 5], (0.5, 4.5)), [2, 1])
        self.assertEqual(token_seconds([0, 1], (0.5, 4.5)), [])

    def test_a_steady_request_loses_nothing(self) -> None:
        self.assertEqual(lost_seconds([0, 1, 2, 3, 4], (1.5, 3.2), NEVER, 1), 0)

    def test_slow_tokens_are_lost_time_wherever_they_lie(self) -> None:
        times = [0, 1, 2.5, 5, 6, 7]  # half a second lost in one token, 1.5 in the next
        self.assertEqual(lost_seconds(times, (1.2, 3), NEVER, 1), 2)
        self.assertEqual(lost_seconds(times, (3, 5), NEVER, 1), 1.5)
        self.assertEqual(lost_seconds(times, (5, 7), NEVER, 1), 0)

    def test_frozen_time_is_not_lost(self) -> None:
        self.assertEqual(lost_seconds([0, 1, 12, 13], (0, 2), (1.5, 11.5), 1), 0)

    def test_a_request_must_run_all_through(self) -> None:
        self.assertIsNone(lost_seconds([1, 2, 3], (0.5, 2), NEVER, 1))
        self.assertIsNone(lost_seconds([1, 2, 3], (2, 4), NEVER, 1))
        self.assertIsNone(lost_seconds([], (2, 4), NEVER, 1))


if __name__ == "__main__":
    unittest.main()
