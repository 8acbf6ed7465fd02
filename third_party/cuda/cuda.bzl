"""cuda_library: sources that nvcc compiles, archived into a static library."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@cuda//:defs.bzl", "CUDA_HOME", "CUDA_VERSION")

# Machine code for each; PTX of the last one, which the driver compiles for newer GPUs.
ARCHS = ["80", "90", "100"]

def _impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]
    context = cc_common.merge_cc_infos(cc_infos = cc_infos).compilation_context
    args = ctx.actions.args()
    args.add_all(["-std=c++20", "-O3", "-Werror", "all-warnings", "-ccbin", "/usr/bin/g++"])
    args.add("-Xcompiler", "-fPIC,-fvisibility=hidden,-Wall,-Wno-unknown-pragmas,-ffp-contract=off")
    args.add("-fmad=false")  # what the CPU computes, bit for bit
    args.add_all(["-gencode=arch=compute_%s,code=sm_%s" % (arch, arch) for arch in ARCHS])
    args.add("-gencode=arch=compute_%s,code=compute_%s" % (ARCHS[-1], ARCHS[-1]))
    args.add_all([".", ctx.bin_dir.path], format_each = "-I%s")
    args.add_all(depset(transitive = [context.includes, context.quote_includes]), format_each = "-I%s")
    args.add_all(context.system_includes, before_each = "-isystem")

    objects = []
    for src in ctx.files.srcs:
        object = ctx.actions.declare_file("_objs/%s/%s.pic.o" % (ctx.label.name, src.basename))
        ctx.actions.run(
            mnemonic = "NvccCompile",
            executable = CUDA_HOME + "/bin/nvcc",
            arguments = [args, "-c", src.path, "-o", object.path],
            inputs = depset([src] + ctx.files.hdrs, transitive = [context.headers]),
            outputs = [object],
            # nvcc finds its parts and the host compiler by PATH; the version makes a new toolkit compile anew.
            env = {"CUDA_VERSION": CUDA_VERSION, "PATH": CUDA_HOME + "/bin:/usr/bin:/bin", "TMPDIR": "/tmp"},
            progress_message = "nvcc %s" % src.short_path,
        )
        objects.append(object)

    archive = ctx.actions.declare_file("lib%s.pic.a" % ctx.label.name)
    ctx.actions.run(
        mnemonic = "NvccArchive",
        executable = "/usr/bin/ar",
        arguments = ["rcsD", archive.path] + [object.path for object in objects],
        inputs = objects,
        outputs = [archive],
    )
    library = cc_common.create_library_to_link(
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        pic_static_library = archive,
        alwayslink = True,
    )
    linker_input = cc_common.create_linker_input(owner = ctx.label, libraries = depset([library]))
    mine = CcInfo(
        compilation_context = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs)),
        linking_context = cc_common.create_linking_context(linker_inputs = depset([linker_input])),
    )
    return [
        DefaultInfo(files = depset([archive])),
        cc_common.merge_cc_infos(direct_cc_infos = [mine], cc_infos = cc_infos),
    ]

cuda_library = rule(
    implementation = _impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
