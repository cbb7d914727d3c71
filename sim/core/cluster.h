// On what it is trained: one kind of node, how nodes are linked, and what a GPU hour costs. The
// kernel and collective cost parameters of the GPU live in profiles/gpu_params.h; this is the part
// a user thinks of.
#pragma once

#include <cstdint>
#include <string>

#include "sim/core/units.h"

namespace shardwright {

struct Gpu {
  std::string id;              // "a100-80g"
  std::string architecture;    // "ampere", "hopper", ...
  double peak_bf16_flops = 0;  // dense
  double peak_fp32_flops = 0;
  int sm_count = 0;
  double hbm_bytes_per_s = 0;
  Bytes memory_bytes = 0;  // total as CUDA reports it
  Bytes runtime_bytes =
      0;  // context, libraries and communicator buffers outside the framework's allocator
  double l2_bytes = 0;
  double pcie_bytes_per_s = 0;
};

struct Cluster {
  std::string id;
  Gpu gpu;
  std::int64_t gpus_per_node = 8;
  bool nvlink = true;
  double intra_link_bytes_per_s = 0;  // per direction and GPU
  std::int64_t nics_per_node = 0;     // 0: nodes are not linked
  double nic_bytes_per_s = 0;         // line rate per direction
  double nic_efficiency = 0.96;       // share of the line rate that large ring collectives reach
  double net_latency_s = 0;           // per ring step between nodes, added by the network
  bool amd_host = false;              // NCCL's network overhead per step depends on the host CPU
  double usd_per_gpu_hour = 0;        // 0: unknown
  std::string price_note;

  double node_net_bytes_per_s() const {
    return static_cast<double>(nics_per_node) * nic_bytes_per_s;
  }
};

}  // namespace shardwright
