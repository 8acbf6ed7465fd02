"""The conversion against a GGUF file that is written here, with rows permuted by the definition."""

import json
import pathlib
import struct
import tempfile
import unittest

import gguf
import numpy as np

import convert_gguf
import safetensors_np

_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM, _INTERMEDIATE, _VOCABULARY = 32, 4, 2, 8, 64, 10


def write_gguf(path, untied=False, architecture="llama", leave_out=()):
    """Writes a one-layer model; returns {GGUF name: float32 array}."""
    random = np.random.default_rng(1)
    shapes = {"token_embd.weight": (_VOCABULARY, _HIDDEN), "output_norm.weight": (_HIDDEN,),
              "blk.0.attn_norm.weight": (_HIDDEN,), "blk.0.attn_q.weight": (_HEADS * _HEAD_DIM, _HIDDEN),
              "blk.0.attn_k.weight": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
              "blk.0.attn_v.weight": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
              "blk.0.attn_output.weight": (_HIDDEN, _HEADS * _HEAD_DIM), "blk.0.ffn_norm.weight": (_HIDDEN,),
              "blk.0.ffn_gate.weight": (_INTERMEDIATE, _HIDDEN), "blk.0.ffn_up.weight": (_INTERMEDIATE, _HIDDEN),
              "blk.0.ffn_down.weight": (_HIDDEN, _INTERMEDIATE)}
    if untied:
        shapes["output.weight"] = (_VOCABULARY, _HIDDEN)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_INTERMEDIATE)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(5000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(_VOCABULARY)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    tensors = {}
    for name, shape in shapes.items():
        if name not in leave_out:
            tensors[name] = random.standard_normal(shape, np.float32)
            writer.add_tensor(name, tensors[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def nearest_bf16(value):
    """The BF16 pattern nearest to a finite float32, by comparing distances."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    low, high = bits >> 16, (bits >> 16) + 1
    distance = [abs(struct.unpack("<f", struct.pack("<I", pattern << 16))[0] - value) for pattern in (low, high)]
    if distance[0] == distance[1]:
        return low if low % 2 == 0 else high
    return low if distance[0] < distance[1] else high


class ConvertTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.source, self.directory = self.folder / "in.gguf", self.folder / "out"

    def test_rounds_to_nearest_even(self):
        patterns = [0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x00008000, 0x80018000, 0x00000001]
        values = np.array(patterns, np.uint32).view(np.float32)
        self.assertEqual(convert_gguf.to_bf16(values).tolist(), [nearest_bf16(float(value)) for value in values])
        special = np.array([0x7F7FFFFF, 0x7F800000, 0xFF800000], np.uint32).view(np.float32)
        self.assertEqual(convert_gguf.to_bf16(special).tolist(), [0x7F80, 0x7F80, 0xFF80])
        nan = int(convert_gguf.to_bf16(np.array([0x7F800001], np.uint32).view(np.float32))[0])
        self.assertTrue(nan & 0x7F80 == 0x7F80 and nan & 0x7F)

    def test_every_element_lands_under_its_name(self):
        for untied in (False, True):
            original = write_gguf(self.source, untied)
            self.assertTrue(convert_gguf.convert(self.source, self.directory))
            tensors = safetensors_np.read(self.directory / "model.safetensors")
            layer = "model.layers.0."
            names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm",
                     "blk.0.attn_norm": layer + "input_layernorm", "blk.0.attn_q": layer + "self_attn.q_proj",
                     "blk.0.attn_k": layer + "self_attn.k_proj", "blk.0.attn_v": layer + "self_attn.v_proj",
                     "blk.0.attn_output": layer + "self_attn.o_proj",
                     "blk.0.ffn_norm": layer + "post_attention_layernorm",
                     "blk.0.ffn_gate": layer + "mlp.gate_proj", "blk.0.ffn_up": layer + "mlp.up_proj",
                     "blk.0.ffn_down": layer + "mlp.down_proj"}
            if untied:
                names["output"] = "lm_head"
            self.assertEqual(set(tensors), {f"{name}.weight" for name in names.values()})
            for name, weight in original.items():
                dtype, shape, view = tensors[names[name.removesuffix(".weight")] + ".weight"]
                self.assertEqual((dtype, shape), ("BF16", weight.shape))
                for at in np.ndindex(shape):
                    source = at
                    if "attn_q" in name or "attn_k" in name:
                        # Dimension i of a head lies at row 2i, dimension i + head_dim/2 at row 2i + 1.
                        head, i = divmod(at[0], _HEAD_DIM)
                        half, i = divmod(i, _HEAD_DIM // 2)
                        source = (head * _HEAD_DIM + 2 * i + half, at[1])
                    self.assertEqual(int(view[at]), nearest_bf16(float(weight[source])), (name, at))

    def test_config_comes_from_the_metadata(self):
        write_gguf(self.source)
        convert_gguf.convert(self.source, self.directory)
        config = json.loads((self.directory / "config.json").read_text())
        self.assertLessEqual({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 10,
            "rms_norm_eps": 1e-06, "rope_theta": 5000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
            "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2,
        }.items(), config.items())
        write_gguf(self.source, untied=True)
        convert_gguf.convert(self.source, self.directory)
        self.assertFalse(json.loads((self.directory / "config.json").read_text())["tie_word_embeddings"])

    def test_idempotent_deterministic_and_repairing(self):
        write_gguf(self.source)
        self.assertTrue(convert_gguf.convert(self.source, self.directory))
        self.assertFalse(convert_gguf.convert(self.source, self.directory))
        output = self.directory / "model.safetensors"
        content = output.read_bytes()
        output.write_bytes(content[:-1] + b"x")
        self.assertTrue(convert_gguf.convert(self.source, self.directory))
        self.assertEqual(output.read_bytes(), content)
        (self.directory / "config.json").unlink()
        self.assertTrue(convert_gguf.convert(self.source, self.directory))
        self.assertEqual(sorted(p.name for p in self.directory.iterdir()),
                         ["config.json", "converted.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])

    def test_refuses_what_it_does_not_know(self):
        for words, options in (("architecture 'gpt2'", {"architecture": "gpt2"}),
                               ("10 tensors, where 1 layers need 11", {"leave_out": ("blk.0.ffn_up.weight",)}),
                               ("no tensor 'token_embd.weight'", {"leave_out": ("token_embd.weight",)})):
            write_gguf(self.source, **options)
            with self.assertRaisesRegex(convert_gguf.ConversionError, words):
                convert_gguf.convert(self.source, self.directory)
        with self.assertRaisesRegex(convert_gguf.ConversionError, "'blk.0.other'"):
            convert_gguf.hf_name("blk.0.other")
        sound = (write_gguf(self.source), self.source.read_bytes())[1]
        for content in (b"", b"GGUF", sound[:-1000], sound[:200]):
            self.source.write_bytes(content)
            with self.assertRaisesRegex(convert_gguf.ConversionError, "not a sound GGUF file"):
                convert_gguf.convert(self.source, self.directory)
        self.assertFalse((self.directory / "model.safetensors").exists())


if __name__ == "__main__":
    unittest.main()
