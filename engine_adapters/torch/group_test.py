import unittest

from headrace.errors import DeadlineError, InputError, PeerError
from headrace.torch.group import Group
from headrace.torch.testing import run_alone, run_ranks


def _outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__, getattr(error, "code", None), getattr(error, "tensor", None), str(error)


def _raises(errors):
    """What each rank sees when rank r raises errors[r], where there is one."""

    def rank(rank):
        group = Group()

        def call():
            if errors[rank] is not None:
                raise errors[rank]
            return rank * 10

        seen = _outcome(lambda: group.each(call))
        return seen, group.each(lambda: "in step")  # the ranks are together still

    outcomes = run_ranks(len(errors), rank)
    for _, after in outcomes:
        assert after == ["in step"] * len(errors)
    return [seen for seen, _ in outcomes]


class GroupTest(unittest.TestCase):
    def test_values_of_all_ranks(self):
        self.assertEqual(_raises([None, None]), [[0, 10]] * 2)

    def test_an_error_of_one_is_raised_on_all(self):
        seen = _raises([None, InputError("unwanted", "no", tensor="w"), None])
        self.assertEqual(seen, [("InputError", "unwanted", "w", "unwanted: no")] * 3)

    def test_the_cause_comes_before_what_follows_from_it(self):
        seen = _raises([PeerError("peer_lost", "a"), DeadlineError("deadline", "b"), InputError("malformed", "c")])
        self.assertEqual([code for _, code, _, _ in seen], ["malformed"] * 3)
        seen = _raises([PeerError("peer_lost", "first"), DeadlineError("deadline", "second")])
        self.assertEqual([text for *_, text in seen], ["peer_lost: first"] * 2)

    def test_an_error_that_is_none_of_headrace(self):
        first, second = _raises([None, ZeroDivisionError("by hand")])
        self.assertEqual(second[0], "ZeroDivisionError")
        self.assertEqual(first[:2], ("PeerError", "aborted"))
        self.assertIn("trainer rank 1 failed: ZeroDivisionError: by hand", first[3])

    def test_the_first_rank_alone(self):
        def rank(rank):
            return Group().first(lambda: f"of rank {rank}")

        self.assertEqual(run_ranks(3, rank), ["of rank 0"] * 3)

    def test_without_torch_distributed(self):
        def alone():
            group = Group()
            assert (group.rank, group.size) == (0, 1)
            try:
                group.each(lambda: 1 // 0)
            except ZeroDivisionError:
                return group.each(lambda: 3), group.first(lambda: 4)

        self.assertEqual(run_alone(alone), ([3], 4))


if __name__ == "__main__":
    unittest.main()
