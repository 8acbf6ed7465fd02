"""What pyproject.toml cannot say: the wheel holds binaries of one platform and fits every Python 3."""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


class AnyPythonWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    packages=["headrace", "headrace.vllm", "headrace.torch"],
    package_data={"headrace": ["py.typed", "*.pyi", "libheadrace.so", "libheadrace_cuda.so", "bin/headrace"]},
    distclass=BinaryDistribution,
    cmdclass={"bdist_wheel": AnyPythonWheel},
)
