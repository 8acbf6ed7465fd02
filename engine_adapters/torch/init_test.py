import subprocess
import sys
import unittest


class InitTest(unittest.TestCase):
    def test_importing_the_package_imports_no_torch(self):
        code = (
            "import sys, headrace.torch; assert 'torch' not in sys.modules and 'Publisher' in headrace.torch.__all__; "
            "assert not hasattr(headrace.torch, 'Nothing'); assert 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_the_publisher_is_there(self):
        import headrace.torch
        from headrace.torch.publisher import Publisher

        self.assertIs(headrace.torch.Publisher, Publisher)


if __name__ == "__main__":
    unittest.main()
