import dataclasses
import unittest

from headrace.errors import InputError
from headrace.vllm import options
from headrace.vllm.options import Options, merge

_NEEDED = {"coordinator": "127.0.0.1:1", "token": "t", "job": "j", "shadow": "host"}


class OptionsTest(unittest.TestCase):
    def test_the_init_info_wins(self):
        given = {"headrace": {"shadow": "host", "transfer_timeout": 7, "job": "a"}, "other plugin": 1}
        merged = merge({"shadow": "off", "job": "b"}, given)
        self.assertEqual(merged, Options(shadow="off", job="b", transfer_timeout=7.0))

    def test_the_network(self):
        given = {"tls": {"ca": "/ca.crt", "server_name": "trainer"}, "devices": ["eth0", "eth1"], "trust_network": False}
        merged = merge(given, {"headrace": {"trust_network": True, "tls": {"ca": "/other"}}})
        self.assertEqual(merged, Options(**given))

    def test_nothing_given(self):
        for additional in (None, {}, {"headrace": {}}):
            self.assertEqual(merge({}, additional), Options())

    def test_unknown_names_are_refused_in_both_places(self):
        with self.assertRaisesRegex(InputError, r'"shadw" in the init info is no option .*shadow'):
            merge({"shadw": "off"}, None)
        with self.assertRaisesRegex(InputError, '"shadw" in --additional-config'):
            merge({}, {"headrace": {"shadw": "off"}})

    def test_wrong_values_are_refused_by_name(self):
        wrong = {
            "coordinator": (1, None, ""),
            "token": (b"t",),
            "engine": ("0", 1.0, True, -1),
            "shadow": ("disk", "HOST", True, None),
            "chunk_bytes": (0, "1", 1.5),
            "loader_bytes": (-1,),
            "trust_network": (1, "true", None),
            "devices": ("eth0", [1], [""], None),
            "tls": (True, "ca.crt", {}, {"ca": 1}, {"ca": ""}, {"key": "k"}, {"ca": "c", "cert": "c"}),
            "join_timeout": (0, -1, float("inf"), float("nan"), "5", True),
        }
        for name, values in wrong.items():
            for value in values:
                with self.subTest(name=name, value=value):
                    with self.assertRaises(InputError) as raised:
                        merge({name: value}, None)
                    self.assertEqual(raised.exception.code, "invalid_option")
                    self.assertIn(f'"{name}"', raised.exception.message)

    def test_a_section_that_is_no_mapping(self):
        with self.assertRaisesRegex(InputError, '"headrace" in --additional-config is list'):
            merge({}, {"headrace": ["shadow"]})

    def test_what_a_session_cannot_do_without(self):
        merge(_NEEDED, None).check_complete()
        for name in _NEEDED:
            with self.assertRaisesRegex(InputError, f'option "{name}" is required'):
                merge({k: v for k, v in _NEEDED.items() if k != name}, None).check_complete()

    def test_the_token_is_not_printed(self):
        self.assertNotIn("secret", repr(Options(token="secret")))

    def test_the_table_lists_every_option_and_no_other(self):
        rows = [line.split("|")[1].strip() for line in options.__doc__.splitlines() if line.startswith("| ")]
        self.assertEqual(rows[1:], [f.name for f in dataclasses.fields(Options)])


if __name__ == "__main__":
    unittest.main()
