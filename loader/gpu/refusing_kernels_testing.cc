// Test only: a kernel library whose launches fail, as where it has no code for a GPU.
#include <cstdio>

#include "kernels/cuda/backend_api.h"

extern "C" const HeadraceKernelsV1* HeadraceKernels() {
  static const HeadraceKernelsV1 kernels = [] {
    HeadraceKernelsV1 refusing = {};
    refusing.version = HEADRACE_KERNELS_VERSION;
    refusing.copy = [](const HeadraceLaunch*, const HeadraceTable*, uint64_t*, HeadraceKernelError* error) {
      error->code = 209;  // cudaErrorNoKernelImageForDevice
      std::snprintf(error->text, sizeof error->text, "no kernel image is available for execution on the device");
      return error->code;
    };
    return refusing;
  }();
  return &kernels;
}
