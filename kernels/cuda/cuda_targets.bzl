"""What needs the CUDA toolkit; nothing without one."""

load("@cuda//:defs.bzl", "HAS_CUDA")
load("//third_party/cuda:cuda.bzl", "cuda_library")

def cuda_targets():
    if not HAS_CUDA:
        return

    cuda_library(
        name = "kernels_cuda",
        srcs = [
            "backend.cu",
            "copy.cu",
            "elementwise.cu",
            "quantize.cu",
        ],
        hdrs = [
            "device_warp.cuh",
            "launch.h",
        ],
        deps = [
            ":backend_api",
            ":bodies",
            "@cuda//:cudart_static",
        ],
    )

    # Loaded with dlopen (library.h). Exports its one function; the CUDA runtime inside is its own.
    native.cc_binary(
        name = "libheadrace_cuda.so",
        linkopts = [
            "-Wl,--version-script=$(location exports.lds)",
            "-Wl,-z,defs",
        ],
        linkshared = True,
        deps = [
            ":exports.lds",
            ":kernels_cuda",
            "@cuda//:cudart_static",
        ],
    )

    native.cc_test(
        name = "cuda_library_test",
        size = "small",
        srcs = ["cuda_library_test.cc"],
        args = ["$(rootpath :libheadrace_cuda.so)"],
        data = [":libheadrace_cuda.so"],
        deps = [
            ":library",
            "@googletest//:gtest",
        ],
    )

    # For a machine with a GPU; elsewhere it says that there is none.
    native.cc_binary(
        name = "kernels_gpu_check",
        testonly = True,
        srcs = [
            "gpu_bandwidth.cc",
            "gpu_bandwidth.h",
            "gpu_device.cc",
            "gpu_device.h",
            "kernels_gpu_check.cc",
        ],
        deps = [
            ":check_cases",
            ":library",
            ":tables",
            "@cuda//:cudart_static",
            "@json//:nlohmann_json",
        ],
    )
