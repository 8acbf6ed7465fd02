#ifndef HEADRACE_PLANNER_MODELS_HARDWARE_H_
#define HEADRACE_PLANNER_MODELS_HARDWARE_H_

// Machines by name (data/hardware.json, part of the program, which gives the sources). Pure and thread-safe.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace headrace {

// Bandwidths are line rates of one GPU in one direction.
struct Hardware {
  std::string name;    // "H100"
  std::string system;  // "DGX/HGX H100 SXM"
  double nvlink_bytes_per_second = 0;
  double nic_bytes_per_second = 0;  // scale-out
  double hbm_bytes_per_second = 0;  // memory: a copy in it reads and writes
  int nvlink_domain = 0;            // GPUs that reach each other over NVLink
  int gpus_per_node = 0;            // GPUs of one host; may be below nvlink_domain
};

// Sorted.
std::vector<std::string> HardwareNames();

// invalid_option  there is none of that name; the message lists them
absl::StatusOr<Hardware> HardwareNamed(const std::string& name);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MODELS_HARDWARE_H_
