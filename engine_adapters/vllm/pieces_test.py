"""Regions as pieces, against torch's own copy_ and a loop over elements. Needs torch, not vLLM."""

import itertools
import random
import unittest

import torch

from headrace.vllm.pieces import (
    NoBox,
    Region,
    bounding_box,
    buffer_box,
    intersect,
    make_piece,
    merge_overlapping,
    row_major,
    subtract,
)


def region(view: torch.Tensor) -> Region:
    return Region(view.storage_offset(), tuple(view.shape), tuple(view.stride()))


def write(piece, source: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """What docs/manifest.md says that a piece does, element by element."""
    result = buffer.clone()
    viewed = source.reshape(piece.get("view", source.shape))
    axes = piece.get("axes", list(range(len(piece["shape"]))))
    for index in itertools.product(*map(range, piece["shape"])):
        value = viewed[tuple(o + i for o, i in zip(piece["tensor_offset"], index))]
        place = list(piece["buffer_offset"])
        for axis, i in zip(axes, index):
            place[axis] += i
        result[tuple(place)] = value
    return result


class MakePieceTest(unittest.TestCase):
    def check(self, source: torch.Tensor, take, buffer: torch.Tensor, place):
        """copy_ of take(source) into place(buffer), and the piece that says the same."""
        taken, placed = take(source), place(buffer)
        piece = make_piece("t", source.shape, region(taken), region(placed), buffer.shape, buffer.stride())
        made = write(piece, source, buffer)
        placed.copy_(taken)
        self.assertTrue(torch.equal(made, buffer), piece)
        inside = torch.zeros_like(buffer)
        begin, extents = buffer_box(piece)
        inside[tuple(slice(b, b + n) for b, n in zip(begin, extents))] = 1
        self.assertTrue(torch.equal(inside != 0, buffer >= 0))
        return piece

    def setUp(self):
        self.t = torch.arange(24).reshape(4, 6)

    def empty(self, *shape):
        return torch.full(shape, -1)

    def test_rows(self):
        piece = self.check(self.t, lambda t: t[2:], self.empty(5, 6), lambda b: b[:2])
        self.assertEqual(
            piece, {"tensor": "t", "tensor_offset": [2, 0], "shape": [2, 6], "buffer_offset": [0, 0]}
        )

    def test_columns(self):
        piece = self.check(self.t, lambda t: t[:, 3:], self.empty(4, 3), lambda b: b)
        self.assertEqual(piece["tensor_offset"], [0, 3])
        self.assertNotIn("view", piece)

    def test_one_column_and_one_row(self):
        self.check(self.t, lambda t: t[:, 5:6], self.empty(4, 1), lambda b: b)
        self.check(self.t, lambda t: t[3:, 1:4], self.empty(1, 3), lambda b: b)
        self.check(self.t, lambda t: t[3:, 5:], self.empty(1, 1), lambda b: b)

    def test_transposed(self):
        piece = self.check(self.t, lambda t: t.t(), self.empty(6, 4), lambda b: b)
        self.assertEqual((piece["shape"], piece["axes"]), ([4, 6], [1, 0]))

    def test_into_a_stack(self):
        piece = self.check(self.t, lambda t: t[1:3], self.empty(3, 4, 6), lambda b: b[1, 2:])
        self.assertEqual((piece["view"], piece["buffer_offset"]), ([1, 4, 6], [1, 2, 0]))

    def test_out_of_a_stack_transposed(self):
        stack = torch.arange(48).reshape(2, 4, 6)
        self.check(stack, lambda t: t[1].t(), self.empty(3, 6, 4), lambda b: b[2])
        self.check(stack, lambda t: t[1, :, 2:4], self.empty(4, 2), lambda b: b)

    def test_every_second_row(self):
        piece = self.check(self.t, lambda t: t[1::2], self.empty(2, 6), lambda b: b)
        self.assertEqual(piece["view"], [2, 12])

    def test_another_number_of_axes(self):
        self.check(torch.arange(8), lambda t: t.reshape(8, 1), self.empty(8, 1), lambda b: b)
        self.check(torch.arange(24).reshape(6, 1, 4), lambda t: t.reshape(6, 4), self.empty(6, 4), lambda b: b)
        self.check(torch.arange(24).reshape(6, 4), lambda t: t.reshape(6, 1, 4), self.empty(6, 1, 4), lambda b: b)
        self.check(torch.tensor(7), lambda t: t.reshape(1), self.empty(1), lambda b: b)
        self.check(torch.tensor([7]), lambda t: t[0], self.empty(), lambda b: b)

    def test_pitched_buffer(self):
        self.check(self.t, lambda t: t[:, :3], self.empty(4, 8)[:, :3], lambda b: b)

    def test_what_is_no_box(self):
        cases = [
            (lambda t: t[:, ::2], (4, 3), lambda b: b, "no box of the tensor"),
            (lambda t: t[:1].expand(4, 6), (4, 6), lambda b: b, "one element goes to many"),
            (lambda t: t[:2], (4, 6), lambda b: b[::2], "a step of 12 elements"),
            (lambda t: t.reshape(-1)[3:15], (12,), lambda b: b, None),
        ]
        for take, shape, place, message in cases:
            buffer = self.empty(*shape)
            taken, placed = take(self.t), place(buffer)
            if message is None:  # rows that are cut anywhere fit into one axis
                self.check(self.t, take, buffer, place)
                continue
            with self.assertRaisesRegex(NoBox, message):
                make_piece("t", (4, 6), region(taken), region(placed), buffer.shape, buffer.stride())

    def test_random_views(self):
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        made = 0
        for _ in range(400):
            source = torch.arange(1 << 12)[: (n := rng.choice([12, 24, 36, 60]))].reshape(rng.choice(_shapes(n)))
            taken = _random_view(rng, source)
            around = [rng.randrange(3) for _ in taken.shape]
            buffer = torch.full([n + a for n, a in zip(taken.shape, around)], -1)
            begin = [rng.randrange(a + 1) for a in around]
            placed = buffer[tuple(slice(b, b + n) for b, n in zip(begin, taken.shape))]
            with self.subTest(seed=seed, source=source.shape, taken=region(taken), placed=region(placed)):
                try:
                    piece = make_piece("t", source.shape, region(taken), region(placed), buffer.shape, buffer.stride())
                except NoBox:
                    continue
                made += 1
                result = write(piece, source, buffer)
                placed.copy_(taken)
                self.assertTrue(torch.equal(result, buffer), piece)
        self.assertGreater(made, 250, seed)


def _shapes(n: int) -> list[tuple[int, ...]]:
    return [(n,)] + [(a, n // a) for a in range(2, n) if n % a == 0] + [(2, n // 6, 3), (3, 1, n // 3)]


def _random_view(rng: random.Random, t: torch.Tensor) -> torch.Tensor:
    for _ in range(rng.randrange(4)):
        axis = rng.randrange(t.dim())
        kind = rng.randrange(5)
        if kind == 0 and t.shape[axis] > 1:
            begin = rng.randrange(t.shape[axis])
            t = t.narrow(axis, begin, rng.randrange(1, t.shape[axis] - begin + 1))
        elif kind == 1:
            t = t.transpose(axis, rng.randrange(t.dim()))
        elif kind == 2 and t.dim() < 4:
            t = t.unsqueeze(axis)
        elif kind == 3 and t.shape[axis] > 2:
            t = t[(slice(None),) * axis + (slice(rng.randrange(2), None, 2),)]
        elif kind == 4 and t.dim() > 1:
            t = t.select(axis, rng.randrange(t.shape[axis]))
    return t


class BoxTest(unittest.TestCase):
    def elements(self, box):
        return set(itertools.product(*(range(b, b + n) for b, n in zip(*box))))

    def random_box(self, rng, rank):
        begin = tuple(rng.randrange(4) for _ in range(rank))
        return begin, tuple(rng.randrange(1, 4) for _ in range(rank))

    def test_subtract_and_merge(self):
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        for _ in range(300):
            rank = rng.randrange(1, 4)
            a, b, c = (self.random_box(rng, rank) for _ in range(3))
            with self.subTest(seed=seed, a=a, b=b, c=c):
                common = intersect(a, b)
                self.assertEqual(self.elements(common) if common else set(), self.elements(a) & self.elements(b))
                left = subtract(subtract([a], b), c)
                expected = self.elements(a) - self.elements(b) - self.elements(c)
                self.assertEqual(sum(len(self.elements(x)) for x in left), len(expected))
                self.assertEqual(set().union(*map(self.elements, left)), expected)
                merged = merge_overlapping([a, b, c])
                self.assertLessEqual(self.elements(a) | self.elements(b), set().union(*map(self.elements, merged)))
                for x, y in itertools.combinations(merged, 2):
                    self.assertIsNone(intersect(x, y))

    def test_scalars(self):
        self.assertEqual(subtract([((), ())], ((), ())), [])
        self.assertEqual(bounding_box(Region(0, (), ()), ()), ((), ()))

    def test_bounding_box(self):
        t = torch.arange(120).reshape(4, 5, 6)
        cases = {
            "slice": (t[1:3, :, 2:4], ((1, 0, 2), (2, 5, 2))),
            "transposed": (t[:, 2].t(), ((0, 2, 0), (4, 1, 6))),
            "flat rows": (t.reshape(-1)[30:90], ((1, 0, 0), (2, 5, 6))),
            "across rows": (t.reshape(-1)[31:62], ((1, 0, 0), (2, 5, 6))),
            "steps": (t[::2], ((0, 0, 0), (3, 5, 6))),
        }
        for name, (view, box) in cases.items():
            with self.subTest(name):
                self.assertEqual(bounding_box(region(view), t.shape), box)
                begin, extents = box
                inside = t[tuple(slice(b, b + n) for b, n in zip(begin, extents))]
                self.assertTrue(set(view.reshape(-1).tolist()) <= set(inside.reshape(-1).tolist()))

    def test_row_major(self):
        self.assertEqual(row_major((2, 3, 4)), (12, 4, 1))
        self.assertEqual(row_major(()), ())


if __name__ == "__main__":
    unittest.main()
