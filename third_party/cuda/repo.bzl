"""@cuda: the toolkit at $CUDA_HOME, /usr/local/cuda unless set. Without nvcc there the repository says so, and no target
that needs it exists; everything else builds."""

def _impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = ctx.path(home + "/bin/nvcc")
    version = ""
    build = ['package(default_visibility = ["//visibility:public"])']
    if nvcc.exists:
        result = ctx.execute([str(nvcc), "--version"])
        if result.return_code != 0:
            fail("%s --version: %s" % (nvcc, result.stderr))
        version = result.stdout.strip().split("\n")[-1]
        ctx.symlink(home + "/include", "include")
        build.append("""
# Only the folder's path matters; a version of the toolkit keys the cache (CUDA_VERSION).
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**"]),
    includes = ["include"],
)

cc_library(
    name = "cudart_static",
    linkopts = ["-L%s/lib64", "-lcudart_static", "-lrt", "-lpthread", "-ldl"],
    deps = [":headers"],
)""" % home)
    ctx.file("defs.bzl", "CUDA_HOME = %r\nCUDA_VERSION = %r\nHAS_CUDA = %r\n" % (home, version, nvcc.exists))
    ctx.file("BUILD", "\n".join(build) + "\n")

cuda_repository = repository_rule(implementation = _impl, configure = True, local = True, environ = ["CUDA_HOME"])
