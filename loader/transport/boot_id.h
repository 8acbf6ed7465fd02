#ifndef HEADRACE_LOADER_TRANSPORT_BOOT_ID_H_
#define HEADRACE_LOADER_TRANSPORT_BOOT_ID_H_

#include <fstream>
#include <string>

namespace headrace {

// The same in all processes of a machine, whatever namespaces they are in; empty where the kernel does not say.
inline std::string BootId() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_BOOT_ID_H_
