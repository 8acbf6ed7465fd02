#ifndef HEADRACE_LOADER_TRANSPORT_UCX_LIBRARY_H_
#define HEADRACE_LOADER_TRANSPORT_UCX_LIBRARY_H_

// libucp, loaded at run time: Headrace installs and runs where there is no UCX, and never maps a second copy beside one
// that a framework brought along.

#include <ucp/api/ucp.h>

#include <string>

#include "absl/status/statusor.h"

namespace headrace::ucx {

// Every function of UCX that is used here.
// One name a line.
// clang-format off
#define HEADRACE_UCX_FUNCTIONS(X) \
  X(ucp_get_version_string) \
  X(ucp_config_read) \
  X(ucp_config_modify) \
  X(ucp_config_release) \
  X(ucp_init_version) \
  X(ucp_cleanup) \
  X(ucp_worker_create) \
  X(ucp_worker_destroy) \
  X(ucp_worker_get_address) \
  X(ucp_worker_release_address) \
  X(ucp_worker_progress) \
  X(ucp_worker_get_efd) \
  X(ucp_worker_arm) \
  X(ucp_worker_signal) \
  X(ucp_ep_create) \
  X(ucp_ep_flush_nbx) \
  X(ucp_ep_close_nbx) \
  X(ucp_tag_send_nbx) \
  X(ucp_tag_recv_nbx) \
  X(ucp_request_check_status) \
  X(ucp_request_cancel) \
  X(ucp_request_free) \
  X(ucs_status_string)
// clang-format on

struct Library {
  std::string path;  // of the loaded file
#define HEADRACE_UCX_DECLARE(function) decltype(&::function) function = nullptr;
  HEADRACE_UCX_FUNCTIONS(HEADRACE_UCX_DECLARE)
#undef HEADRACE_UCX_DECLARE
};

// The copy that is mapped into this process already, otherwise libucp.so.0 by the loader's search path (RTLD_LOCAL).
// Loaded once, never unloaded; any thread may call this.
//
// Before it loads a copy it sets, in the environment and unless they are set, the variables by which UCX keeps its
// hands off the process: no memory hooks (UCX_MEM_EVENTS, UCX_MEM_MMAP_HOOK_MODE, UCX_MEM_MALLOC_HOOKS,
// UCX_MEM_MALLOC_RELOC, UCX_MEM_CUDA_HOOK_MODE), no signal handlers (UCX_ERROR_SIGNALS, UCX_HANDLE_ERRORS,
// UCX_DEBUG_SIGNO), no monitoring thread (UCX_VFS_ENABLE), no log lines on standard output (UCX_LOG_FILE), and none for
// errors that reach the caller as a status anyway, such as a peer that died (UCX_LOG_LEVEL; "warn" is UCX's own). UCX
// reads them in its library constructors, so there is no other way; no other thread may call getenv or setenv at that
// moment. Names as of UCX 1.13
// (`ucx_info -c -f`).
//
// kTransport: names what was tried and the package to install; two different copies are mapped (names both); a function
// is missing.
absl::StatusOr<const Library*> LoadLibrary();

}  // namespace headrace::ucx

#endif  // HEADRACE_LOADER_TRANSPORT_UCX_LIBRARY_H_
