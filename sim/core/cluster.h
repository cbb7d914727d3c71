// SPDX-License-Identifier: Apache-2.0
// On what it is trained: one kind of node, how nodes are linked, and what a GPU hour costs. The
// kernel and collective cost parameters of the GPU live in profiles/gpu_params.h; this is the part
// a user thinks of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/core/units.h"

namespace shardwright {

/// What a GPU keeps of the rates of its fitted kernels (cost.gemm, cost.memory) under the load of a
/// training that many of them share; the fits have seen short runs on one GPU.
struct TrainingLoad {
  double gemm_share = 1;    // of GEMMs, whatever their precision
  double stream_share = 1;  // of kernels that memory bounds
};

struct Gpu {
  std::string id;            // "a100-80g"
  std::string architecture;  // "ampere", "hopper", ...
  // Dense peaks with fp32 accumulation, flop/s; 0: the GPU lacks the type.
  double peak_bf16_flops = 0;
  double peak_fp32_flops = 0;  // outside tensor cores
  double peak_tf32_flops = 0;
  double peak_fp16_flops = 0;
  double peak_fp8_flops = 0;
  double peak_nvfp4_flops = 0;
  int sm_count = 0;
  double hbm_bytes_per_s = 0;
  Bytes memory_bytes = 0;  // total as CUDA reports it
  Bytes runtime_bytes =
      0;  // context, libraries and communicator buffers outside the framework's allocator
  double l2_bytes = 0;
  double pcie_bytes_per_s = 0;
  TrainingLoad training_load;
  /// GEMMs read fp8 operands whichever dimension is last, else the inner one must be.
  bool fp8_any_layout = false;
  /// What GEMMs in MXFP8 reach of those in fp8 with one scale a tensor; 0: the GPU has none.
  double mxfp8_gemm_share = 0;
  /// What one SM goes through in kernels of which a thread block has one row of logits; 0: unknown.
  double row_kernel_sm_bytes_per_s = 0;
  /// Streams run side by side. False: a rank's operations run one after another, as they are
  /// issued, on the thread that issues them (the host device).
  bool overlaps_streams = true;
  /// Each stream has a processor of its own, so kernels of several run at once and none slows
  /// another (virtual clocks of the host device).
  bool independent_streams = false;
  /// What runs in one stream slows what runs in another.
  bool streams_contend() const { return overlaps_streams && !independent_streams; }

  /// A processor: sm_count counts its cores, and arithmetic is fp32 whatever is stored.
  bool is_processor() const { return architecture == "cpu"; }
};

/// Kinds of networks between nodes.
inline constexpr std::string_view kNetworks[] = {"infiniband", "roce", "efa", "slingshot",
                                                 "ethernet"};

struct Cluster {
  std::string id;
  Gpu gpu;
  std::int64_t gpus_per_node = 8;     // ranks of a node
  std::int64_t devices_per_node = 0;  // that they share evenly; 0: every rank has its own
  /// GPUs that NVLink joins, where those are more than a node's; 0: a node's.
  std::int64_t nvlink_domain = 0;
  bool nvlink = true;
  double intra_link_bytes_per_s = 0;  // per direction and GPU
  std::int64_t nics_per_node = 0;     // 0: nodes are not linked
  double nic_bytes_per_s = 0;         // line rate per direction
  double nic_efficiency = 0.96;       // share of the line rate that large ring collectives reach
  double net_latency_s = 0;           // per ring step between nodes, added by the network
  std::string network{};              // its kind, a word of kNetworks; empty: not said
  bool amd_host = false;              // NCCL's network overhead per step depends on the host CPU
  double usd_per_gpu_hour = 0;        // 0: unknown
  std::string price_note;

  /// Ranks that share one device when `world_ranks` train together.
  std::int64_t ranks_per_device(std::int64_t world_ranks) const {
    if (devices_per_node <= 0) return 1;
    const std::int64_t in_node = world_ranks < gpus_per_node ? world_ranks : gpus_per_node;
    return in_node <= devices_per_node ? 1 : (in_node - 1) / devices_per_node + 1;
  }
  /// What a rank may use of its device's memory.
  Bytes memory_bytes_per_rank(std::int64_t world_ranks) const {
    return gpu.memory_bytes / ranks_per_device(world_ranks);
  }

  double node_net_bytes_per_s() const {
    return static_cast<double>(nics_per_node) * nic_bytes_per_s;
  }
};

}  // namespace shardwright
