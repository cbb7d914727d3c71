// Parameters of the cost model of one GPU kind: plain numbers, filled from data files, read by sim.
//
// The formulas live in sim/*_cost.h and sim/collectives.h; here are only their coefficients, so
// that profiles (loading, importing) need not know the simulator. All units are SI: seconds, bytes,
// flops, bytes per second. Defaults are those of an "unknown GPU": every shipped GPU overrides them
// in profiles/data/fitted/gpu_cost.json, which also carries sources, fit commands and held-out
// errors.
#pragma once

namespace shardwright::profiles {

/// Rates of the silicon, from the data sheet and not fitted.
struct GpuRates {
  double peak_flops = 0;        ///< dense bf16 peak, flop/s
  int sm_count = 0;             ///< streaming multiprocessors
  double hbm_bytes_per_s = 0;   ///< device memory bandwidth, nominal
  double hbm_efficiency = 0.8;  ///< share of it that streaming kernels reach
  double l2_bytes = 0;          ///< last-level cache; 0 = unknown
};

/// Tile and wave model of one matrix product (sim/gemm_cost.h).
struct GemmParams {
  double t0_s = 2.5e-6;           ///< launch gap and prologue of every product
  double e = 0.85;                ///< share of peak of the main loop of a 256x128 tile
  double k0 = 150;                ///< prologue and epilogue of a tile, as extra steps of k
  double w = 0.5;                 ///< wave hardness: 1 = whole waves, 0 = perfectly balanced
  double s = 0.02;                ///< tile-size exponent: efficiency ~ (tile area / 32768)^s
  double split_k_s = 1.5e-6;      ///< fixed cost of a split-k reduction
  double sustained_factor = 0.9;  ///< multiplies e under training load (power, temperature)
};

/// Fused attention: rate(s) = R * s / (s + s0) (sim/attention_cost.h).
struct AttentionParams {
  double t0_s = 3e-6;                ///< launch gap
  double forward_flops = 0;          ///< R of the forward pass at head_dim 128, flop/s
  double forward_s0 = 800;           ///< tokens at which half of R is reached
  double backward_over_forward = 3;  ///< backward time over forward time, long sequences
  double head64_factor = 0.9;        ///< R at head_dim 64 over R at head_dim 128
  double noncausal_factor = 1.08;    ///< R of a full mask over R of a causal one
};

/// Memory-bound kernels: t1 + bytes / rate (sim/memory_cost.h).
struct MemoryParams {
  double t1_s = 2e-6;               ///< launch gap and ramp
  double stream_efficiency = 0.85;  ///< of HBM bandwidth: copy, add, fused element-wise, optimizer
  double reduce_efficiency = 0.75;  ///< of HBM bandwidth: norm backward, softmax, loss
  double l2_speedup = 2.0;          ///< bandwidth of data that stay in L2, over HBM
};

/// One NCCL protocol inside a node: t = base + hop * steps + x / bandwidth, x = bytes per rank on
/// the wire.
struct ProtocolParams {
  double base_s = 0;
  double hop_s = 0;        ///< per ring step inside the node
  double bytes_per_s = 0;  ///< bus bandwidth that the protocol reaches inside the node
};

/// NCCL collectives of one GPU kind inside a node (sim/collectives.h).
struct CollectiveParams {
  bool nvlink = true;                 ///< false: ranks of a node talk over PCIe and host memory
  bool nvls = false;                  ///< NVLink SHARP (NVSwitch, Hopper or newer)
  ProtocolParams ll;                  ///< all channels
  double ll_channel_bytes_per_s = 0;  ///< LL on the one channel that tiny messages use
  double ll_spread_s = 0;             ///< extra latency once LL spreads over all channels
  ProtocolParams ll128;
  ProtocolParams simple;
  double simple_sqrt_s = 0;           ///< Simple ramp: seconds per sqrt(byte)
  double own_copy_bytes_per_s = 0;    ///< the step that only copies a rank's own part
  ProtocolParams nvls_simple;         ///< all_reduce in the switch
  double nominal_bytes_per_s = 0;     ///< ring bus bandwidth in NCCL's own model, for its choices
  double nominal_ll_bytes_per_s = 0;  ///< cap of LL in NCCL's own model
  double nominal_ll128_bytes_per_s = 0;
  int channels_one_node = 24;  ///< one CTA, hence one SM, per channel
  int channels_multi_node = 16;
  int channels_nvls = 16;
};

}  // namespace shardwright::profiles
