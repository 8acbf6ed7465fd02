#ifndef HEADRACE_PLANNER_COST_GPU_MACHINE_H_
#define HEADRACE_PLANNER_COST_GPU_MACHINE_H_

// The cost model of a cluster of GPUs, from their data sheet.

#include "planner/cost/machine.h"
#include "planner/models/hardware.h"

namespace headrace {

// NIC and NVLink at `efficiency` (above 0, at most 1) of their line rates; 1 is what the wires could do, and no system
// reaches. Packing and unpacking at half of the memory bandwidth, since each byte is read and written.
//
// What data sheets do not say, and what therefore is assumed: latencies of 5 us between domains and 2 us inside one
// (the order of an RDMA write with its flag, and of a remote store with its flag), 1 us to send a message, 20 ns for a
// strided copy (a descriptor of a table that one launch goes through), and that nothing else uses the wires. Fixed
// costs and commits are left at 0: they depend on the engine.
CostModel GpuCostModel(const Hardware& hardware, double efficiency = 1);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_GPU_MACHINE_H_
