#ifndef HEADRACE_PLANNER_COST_MACHINE_H_
#define HEADRACE_PLANNER_COST_MACHINE_H_

// What moving bytes costs on the machines of a job: the numbers that the simulator (simulate.h) and the bounds
// (bounds.h) are given. One struct serves a cluster of GPUs, where links are the scarce thing, and processes that share
// a host's cores and memory. Pure data.
//
// A node is one rank: a GPU or a process. It has, in each direction, a NIC and an NVLink port, and one *worker*: the
// copy engine of a GPU, the transport's thread of a process. The worker does one thing at a time, links work beside it.
//
//   packed wire   worker of `from`: pack, send      link: tx, latency, rx      worker of `to`: receive, unpack
//   mapped wire   (nothing)                         link: tx, latency, rx      worker of `to`: one strided copy
//
// Where the numbers come from: a GPU cluster's from its data sheet (planner/models/hardware.h: `nic`, `nvlink`, `hbm`),
// times an efficiency where one has been fitted; those of processes from a calibration on the machine itself. A field
// that is 0 costs nothing.

#include "planner/manifest.h"

namespace headrace {

// A way between two nodes: NVLink inside a domain, NIC otherwise.
struct WireCost {
  double bytes_per_second = 0;  // of each node in each direction (data sheet, one direction); 0: no limit
  Index latency_ns = 0;         // from the first byte's leaving to its arrival (ping-pong, half of it)
  Index message_ns = 0;         // the sender's port is busy that long for each message besides its bytes (message rate)
  // What the workers do for a message besides copying: system calls, protocol (TCP's copies between user and kernel).
  double sender_ns_per_byte = 0;
  Index sender_ns_per_message = 0;
  double receiver_ns_per_byte = 0;
  Index receiver_ns_per_message = 0;
  // The receiver copies straight out of the sender's memory (CopyCost direct): no staging on either side. It still
  // crosses the link.
  bool mapped = false;
};

// A worker's strided copies.
struct CopyCost {
  double bytes_per_second = 0;  // bytes copied, each read once and written once; 0: no limit
  double ns_per_copy = 0;       // of each strided copy: descriptor, launch, loop set-up
};

struct CostModel {
  WireCost nvlink;  // between nodes of one domain
  WireCost nic;     // between all others
  // What the spine, which joins the rails (Traffic::rail), carries in a second, as a share of what all nodes' NICs
  // together send. 1: as much as they can send, so that rails make no difference. Above 0, at most 1.
  double spine_share = 1;

  CopyCost pack;      // at the source, of a packed wire: buffers -> staging. GPU: hbm / 2, since it is read and written
  CopyCost unpack;    // at each destination of a packed wire: staging -> buffers
  CopyCost direct;    // at the destination of a mapped wire
  CopyCost snapshot;  // publishers' copy of what they offer, before anything is sent
  CopyCost commit;    // shadow -> live buffers, after everything has arrived

  Index chunk_bytes = Index{4} << 20;  // of a message; the last of a flow is shorter
  // Chunks of one hop between the beginning of packing (or sending) and the end of unpacking.
  Index window = 4;
  Index group_ns = 0;  // to launch a group of hops (Hop::group)

  Index fixed_ns = 0;  // of a refit: announcement, plan look-up, votes, commit decision
  Index rank_ns = 0;   // of a refit, for each rank of both sides: the coordinator's messages with it

  // Processes that share hosts. Workers of one host run at full speed while there are no more of them at work than
  // cores, and while together they copy no more than its memory can do; otherwise all are slowed alike.
  Index cores = 0;                     // of a host; 0: workers are independent (copy engines)
  double memory_bytes_per_second = 0;  // bytes that a host's workers copy together, at most; 0: no limit. Needs `cores`
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_MACHINE_H_
