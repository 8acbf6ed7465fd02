import unittest

import belief


def run_of(*seconds: float, foreign: float = 0.0) -> dict:
    return {"foreign_cores": foreign, "samples": [{"seconds": s} for s in seconds]}


def found(case: str, weights: str, measured: float, simulated: float) -> dict:
    return {"case": case, "weights": weights, "measured_seconds": measured, "simulated_seconds": simulated}


class MergeTest(unittest.TestCase):
    def test_takes_the_median_of_each_number(self):
        documents = [{"cores": 2, "runs": [{"run_bytes": 64, "direct": d}], "name": "a"} for d in (3.0, 1.0, 2.0)]
        self.assertEqual(belief.merge(documents), {"cores": 2, "runs": [{"run_bytes": 64, "direct": 2.0}], "name": "a"})

    def test_whole_numbers_stay_whole(self):
        self.assertEqual(belief.merge([{"n": 1}, {"n": 2}]), {"n": 1})
        self.assertEqual(belief.merge([{"n": 1.0}, {"n": 2.0}]), {"n": 1.5})


class RefitsTest(unittest.TestCase):
    def test_compares_the_median_of_the_rounds_with_what_was_simulated(self):
        # Each round's figure is the median of its generations: 2, 4 and 6.
        results = {"a": [run_of(9, 2, 1), run_of(4, 4, 9), run_of(6, 6, 6, foreign=0.5)]}
        predicted = {"a": {"simulated_seconds": 5, "by_phase": {"snapshot": 1}}}
        refit, = belief.refits([{"case": "a", "weights": "w"}], results, predicted, limit=0.1)
        self.assertEqual(refit["measured_seconds"], 4)
        self.assertEqual(refit["quartiles"], [2, 6])
        self.assertAlmostEqual(refit["error"], 0.25)
        self.assertEqual(refit["disturbed_rounds"], 1)


class OrderTest(unittest.TestCase):
    def test_counts_alternatives_of_the_same_weights_alone(self):
        order = belief.order([found("a", "w", 1, 1), found("b", "w", 2, 3), found("c", "v", 3, 0.1)])
        self.assertEqual(order, {"pairs": 1, "ties": 0, "wrong": []})

    def test_names_what_is_the_wrong_way_round(self):
        order = belief.order([found("a", "w", 1, 3), found("b", "w", 2, 2), found("c", "w", 2.05, 1)])
        # b and c are too near to each other to have an order.
        self.assertEqual(order, {"pairs": 2, "ties": 1, "wrong": [["a", "b"], ["a", "c"]]})


if __name__ == "__main__":
    unittest.main()
