// SPDX-License-Identifier: Apache-2.0
// Parameters of the cost model of one GPU kind: plain numbers, filled from data files, read by sim.
//
// The formulas live in sim/*_cost.h and sim/cost/collectives.h; here are only their coefficients,
// so that profiles (loading, importing) need not know the simulator. All units are SI: seconds,
// bytes, flops, bytes per second. The shipped values are in profiles/data/fitted/gpu_cost.json,
// with sources, fit commands and held-out errors; profiles/gpu_cost.h reads them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "sim/core/product_choices.h"

namespace shardwright::profiles {

/// Rates of the silicon, from data sheets. Fitted shares (GemmParams::e) are relative to these.
struct GpuRates {
  double peak_flops = 0;        ///< dense bf16 peak with fp32 accumulation, flop/s
  int sm_count = 0;             ///< streaming multiprocessors
  double hbm_bytes_per_s = 0;   ///< device memory bandwidth, nominal
  double hbm_efficiency = 0.8;  ///< share of it that streaming kernels reach
  double l2_bytes = 0;          ///< last-level cache; 0 = unknown
  bool processor = false;       ///< products are cut as the host device cuts them; sm_count: cores
  int pool_threads = 0;         ///< of a processor, for which they are cut; 0: as many as cores
};

/// Tile and wave model of one GEMM (sim/cost/gemm_cost.h).
struct GemmParams {
  double t0_s = 2.5e-6;           ///< launch gap and prologue of every product
  double e = 0.85;                ///< share of peak of the main loop of a 256x128 tile
  double k0 = 150;                ///< prologue and epilogue of a tile, as extra steps of k
  double w = 0.5;                 ///< wave hardness: 1 = whole waves, 0 = perfectly balanced
  double s = 0.02;                ///< tile-size exponent: efficiency ~ (tile area / 32768)^s
  double split_k_s = 1.5e-6;      ///< fixed cost of a split-k reduction
  double throttle = 0;            ///< long kernels are slower than short ones by this share ...
  double throttle_s = 1e-3;       ///< ... half of which has set in at this duration
  double sustained_factor = 0.9;  ///< multiplies e under training load (power, temperature)
};

/// A GEMM as timed, alone on the device and per product: in place of the formula.
struct MeasuredProduct {
  std::int64_t m = 0, n = 0, k = 0;
  int dtype_bytes = 2;
  int sharers = 1;     // ranks that shared the device
  double seconds = 0;  // of a stack whose gemm_efficiency is 1
  std::int64_t count = 0;
  std::optional<ProductLayout> layout;  // none: of no particular one
};

/// Products in fewer bits: the same tiles at another peak (sim/cost/gemm_cost.h). A share is what
/// the main loop reaches of its own peak over what GemmParams::e says of the bf16 peak.
struct LowPrecisionParams {
  double fp8_share = 0.9;
  double nvfp4_share = 0.75;
};

/// Tokens to the ranks of their experts and back, by kernels that send a token once to each rank
/// (sim/cost/collectives.h).
struct DispatchParams {
  double t0_s = 5e-5;              ///< launch and notification
  double token_s = 4e-7;           ///< bookkeeping of a token, by one SM
  double sm_bytes_per_s = 2.2e10;  ///< what one SM copies
  double link_bytes_per_s = 3e11;  ///< and all of them at most, over NVLink
};

/// NCCL's all-to-all inside a domain: t = base + sqrt_s sqrt(x) + x / bandwidth, x what a rank
/// sends to others (sim/cost/collectives.h).
struct ExchangeParams {
  double base_s = 1e-5;
  double sqrt_s = 6e-9;
  double bytes_per_s = 3e11;
};

/// One fused attention kernel: rate(s) = R * s / (s + s0) (sim/cost/attention_cost.h).
struct AttentionParams {
  double t0_s = 3e-6;         ///< launch gap
  double forward_flops = 0;   ///< R forward at head_dim 128, causal, flop/s
  double forward_s0 = 0;      ///< tokens at which half of R is reached
  double backward_flops = 0;  ///< R backward, counting 2.5 times the flops of forward
  double backward_s0 = 0;
  double head64_factor = 0.9;      ///< R at head_dim 64 over R at head_dim 128
  double noncausal_factor = 1.08;  ///< R of a full mask over R of a causal one
};

/// Memory-bound kernels: t1 + bytes / rate (sim/cost/op_cost.h).
struct MemoryParams {
  double t1_s = 2e-6;               ///< launch gap and ramp
  double stream_efficiency = 0.85;  ///< of HBM bandwidth: copy, add, fused element-wise, optimizer
  double reduce_efficiency = 0.75;  ///< of HBM bandwidth: norm backward, softmax, loss
  double l2_speedup = 1.5;          ///< bandwidth of data that stay in L2, over HBM
};

/// What running beside each other costs beyond the SMs and the memory bandwidth that a collective
/// takes from kernels (sim/cost/cost.h). One set for all GPUs: no GPU ships with fitted values.
struct ContentionParams {
  double kernels = 1;                ///< time of a kernel beside a collective, over the model's
  double nvlink_collectives = 1.08;  ///< time of a collective inside a node beside kernels
  double other_collectives = 1;      ///< the same over NICs or PCIe
  double least_bandwidth_share = 1;  ///< of streaming bandwidth, that a collective leaves kernels
  /// Share of a step lost to slow ranks and a shared network for each doubling of the GPUs beyond a
  /// node.
  double scale_loss = 0;
};

/// One NCCL protocol inside a node: t = base + hop * steps + x / bandwidth, where x is what each
/// rank puts on the wire.
struct ProtocolParams {
  double base_s = 0;
  double hop_s = 0;        ///< per ring step
  double bytes_per_s = 0;  ///< bus bandwidth
};

/// NCCL's own cost table (graph/tuning.cc): by it NCCL picks algorithm and protocol, and between
/// nodes it is also our estimate of latency. Arrays are indexed LL, LL128, Simple.
struct NcclTable {
  std::array<double, 3> ring_base_s{}, ring_nvlink_hop_s{}, ring_pci_hop_s{}, ring_net_hop_s{};
  std::array<double, 3> tree_base_s{}, tree_nvlink_hop_s{}, tree_pci_hop_s{}, tree_net_hop_s{};
  double pat_base_s = 0, pat_rank_s = 0, pat_net_divisor = 1;
  double net_overhead_intel_s = 0, net_overhead_amd_s = 0;  ///< per hop once a network is involved
  double simple_overhead_factor = 1;                        ///< the same for Simple, times this
  double ll_share = 0, ll128_share = 0, pat_share = 0, tree_share = 0;  ///< of the ring's bandwidth
  /// Caps of LL between nodes, {two nodes, three or more}.
  std::array<double, 2> ll_cap_intel_bytes_per_s{}, ll_cap_amd_bytes_per_s{};
  /// Device memory that is read and written for each byte on the wire.
  double gather_traffic = 0, reduce_traffic = 0, all_reduce_traffic = 0;
};

/// NCCL collectives of one GPU kind (sim/cost/collectives.h).
struct CollectiveParams {
  bool nvlink = true;                 ///< false: ranks of a node talk over PCIe
  bool nvls = false;                  ///< NVLink SHARP (NVSwitch, Hopper or newer)
  ProtocolParams ll;                  ///< on all channels
  double ll_channel_bytes_per_s = 0;  ///< LL on the few channels that tiny messages use
  double ll_spread_s = 0;             ///< extra latency once LL spreads over all channels
  ProtocolParams ll128;
  ProtocolParams simple;
  double simple_sqrt_s = 0;                  ///< Simple's ramp: seconds per sqrt(byte)
  double gather_copy_bytes_per_s = 0;        ///< ring step that only moves a rank's own part
  double reduce_copy_bytes_per_s = 0;        ///< the same of collectives that reduce
  ProtocolParams nvls_simple;                ///< all_reduce in the switch
  double nominal_bytes_per_s = 0;            ///< ring bus bandwidth in NCCL's own model
  double nominal_ll_bytes_per_s = 0;         ///< its cap of LL inside a node
  double nominal_ll128_bytes_per_s = 0;      ///< its cap of LL128 inside a node
  double nominal_ll128_net_bytes_per_s = 0;  ///< its cap of LL128 between nodes
  double nominal_nvls_bytes_per_s = 0;       ///< published bus bandwidth of all_reduce over NVLS
  int channels_one_node = 24;                ///< one CTA, hence one SM, per channel
  int channels_multi_node = 16;
  int channels_nvls = 16;
  /// What all NICs of this GPU's usual node reach together; for tables that do not say. 0: unknown.
  double usual_net_bytes_per_s = 0;
  NcclTable nccl;
};

// The groups of values that calibration fits together and whose errors are counted together.

enum class CostGroup : std::uint8_t {
  kProducts,
  kAttention,
  kMemory,
  kCollectives,
  kHost,
  kContention
};
inline constexpr std::size_t kCostGroups = 6;
/// "products", "attention", "memory", "collectives", "host", "contention".
std::string_view name_of(CostGroup group);

// Where the values of a profile come from, kept beside them by path.

/// All but `source` may be empty.
struct Origin {
  std::string source;
  std::string confidence;  // high, medium, low, inferred or uncertain
  std::string date;        // ISO: 2025, 2025-06 or 2025-06-30
};
using Origins = std::map<std::string, Origin, std::less<>>;

}  // namespace shardwright::profiles
