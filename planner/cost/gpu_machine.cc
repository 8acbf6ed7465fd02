#include "planner/cost/gpu_machine.h"

namespace headrace {

CostModel GpuCostModel(const Hardware& hardware, double efficiency) {
  CostModel model;
  model.nic = {.bytes_per_second = hardware.nic_bytes_per_second * efficiency, .latency_ns = 5000, .message_ns = 1000};
  model.nvlink = {
      .bytes_per_second = hardware.nvlink_bytes_per_second * efficiency, .latency_ns = 2000, .message_ns = 1000};
  model.pack = {.bytes_per_second = hardware.hbm_bytes_per_second / 2, .ns_per_copy = 20};
  model.unpack = model.pack;
  model.direct = model.pack;
  model.snapshot = model.pack;
  model.commit = model.pack;
  return model;
}

}  // namespace headrace
