// SPDX-License-Identifier: Apache-2.0
// What one operation of a unit costs on a profile: its kernels, alone or beside a collective; the
// collective that it is, or that runs inside it; and what the host needs to launch it.
//
// A collective in pieces runs inside a GEMM: a ring of n pieces (userbuffers' all-gather, PyTorch's
// async) takes max(GEMM, collective + GEMM / n), a pipelined reduce-scatter max(GEMM + collective /
// s, GEMM / s + collective) with s pieces and the SMs that its kernels hold. GEMMs of one shape are
// looked up, not computed again.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <unordered_map>

#include "profiles/gpu_params.h"
#include "profiles/profile.h"
#include "sim/core/attention_form.h"
#include "sim/core/layout.h"
#include "sim/core/schedule.h"
#include "sim/core/units.h"
#include "sim/cost/attention_cost.h"
#include "sim/cost/collectives.h"
#include "sim/cost/gemm_cost.h"

namespace shardwright::sim {

// Time of a memory-bound kernel: t1 + bytes / (share of HBM bandwidth).
//
// Streaming kernels reach 0.8-0.9 of the data-sheet bandwidth; each framework's kernel reaches its
// own share of that (`efficiency`). What fits in L2 is faster: the share of the speed-up falls
// linearly to zero as the footprint grows to the size of L2. Left out: launch gaps of the host,
// access patterns (they belong in `efficiency`).

/// What traffic beside a kernel takes of the streaming bandwidth, and the share that is left in any
/// case.
struct TakenBandwidth {
  double bytes_per_s = 0;
  double least_share_left = 1;
};

/// Seconds for a kernel that moves `bytes` to or from memory. `efficiency` is relative to
/// params.stream_efficiency. No bytes, no time. Never falls when bytes grow.
double memory_time_s(const profiles::MemoryParams& params, const profiles::GpuRates& gpu,
                     double bytes, double efficiency = 1, const TakenBandwidth& taken = {});

// The time of one kernel on a profile, alone or beside a collective: which formula applies to an
// operation's work, and with what of the profile.
//
// cost.h costs whole schedules with it, sim/calibrate fits it to measured kernels; so what is
// fitted is what predicts. A product that the profile has a measurement of takes that time, in
// place of the formula; with fewer SMs it slows down as the formula says. Left out: collectives
// (collectives.h), which need to know their group.

struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  int other = 0;  // SMs available, or bytes of an element
  ProductLayout layout = ProductLayout::kNT;
  bool operator==(const ProductShape&) const = default;
};
struct ProductShapeHash {
  std::size_t operator()(const ProductShape& s) const {
    std::uint64_t h = static_cast<std::uint64_t>(s.m) * 0x9E3779B97F4A7C15ULL;
    h = (h ^ static_cast<std::uint64_t>(s.n)) * 0xBF58476D1CE4E5B9ULL;
    h = (h ^ static_cast<std::uint64_t>(s.k)) * 0x94D049BB133111EBULL;
    const auto layout = static_cast<std::uint64_t>(s.layout) << 40;
    return static_cast<std::size_t>(h ^ static_cast<std::uint64_t>(s.other) ^ layout ^ (h >> 29));
  }
};

/// What attention costs where it is not the stack's usual kernel (sim/core/attention_form.h).
struct OtherAttention {
  NaiveAttention naive;              // no instructions: the usual kernel takes everything
  double instructions_per_sm_s = 0;  // of warps
  profiles::AttentionParams flash;   // FlashAttention-2's: the same algorithm on the same units
  bool has_wide_engine = true, packs_documents = false;

  AttentionForm form_of(const Work& work) const;
};

/// What of a profile the time of a kernel depends on.
struct KernelCosts {
  profiles::GpuRates rates;
  profiles::GemmParams gemm;  // under training load
  profiles::AttentionParams attention;
  OtherAttention other_attention;
  profiles::MemoryParams memory;
  CopyEfficiencies copies;
  double contention = 1;             // a kernel beside a collective, over the model
  double least_bandwidth_share = 1;  // that a collective leaves
  double fp32_slowdown = 1;          // peak of bf16 over that of fp32
  /// Measured over predicted time, by shape, bytes of an element and layout.
  std::unordered_map<ProductShape, double, ProductShapeHash> measured;
};

/// On a device that `sharers` ranks share evenly: each has that part of its units, rates and cache.
/// More ranks than units take turns on them, which stretches fixed costs, too.
KernelCosts kernel_costs(const profiles::Profile& profile, std::int64_t sharers = 1);

/// By what ranks that share a device stretch what the host does for one of them, and, where copies
/// are made by one unit each, copies: a processor has a core for each of them or a part of one.
double turns(const Gpu& gpu, std::int64_t sharers);

/// What a resident collective takes from kernels; nothing: no collective.
struct Sharing {
  int channels = 0;
  double hbm_bytes_per_s = 0;
};

double copy_efficiency(const CopyEfficiencies& copies, const Work& work);

/// Of the naive attention, which is bound by the instructions that its warps issue.
double naive_attention_time_s(const KernelCosts& costs, const Work& work, int sms);

/// Seconds of products, attention and memory-bound work; 0 for other work. `product(m, n, k, sms)`
/// gives gemm_time_s, possibly from memory.
template <typename Product>
double kernel_time_s(const KernelCosts& costs, const Work& work, const Sharing& sharing,
                     Product&& product) {
  const int sms = std::max(1, costs.rates.sm_count - sharing.channels);
  const double times = work.kernels;
  const TakenBandwidth taken{sharing.hbm_bytes_per_s, costs.least_bandwidth_share};
  switch (work.kind) {
    case WorkKind::kGemm: {
      // fp32 products run at the fp32 (TF32-off) rate: scale by the ratio of the peaks.
      double scale = work.dtype_bytes == 4 ? costs.fp32_slowdown : 1;
      if (!costs.measured.empty()) {
        const auto known =
            costs.measured.find({work.m, work.n, work.k, work.dtype_bytes, work.layout});
        if (known != costs.measured.end()) scale *= known->second;
      }
      return times * scale / work.efficiency * product(work.m, work.n, work.k, sms);
    }
    case WorkKind::kAttention: {
      if (work.bytes > 0 && !work.ordered) {
        // Eager: two products over all scores (five backward) and passes over the score matrix.
        const double products = work.backward ? 4 : 2;
        return products *
                   gemm_time_s(costs.gemm, costs.rates, work.n, work.n, work.k, sms, work.m) +
               memory_time_s(costs.memory, costs.rates, static_cast<double>(work.bytes), 1, taken) +
               (times - 1) * costs.memory.t1_s;
      }
      const AttentionForm form = costs.other_attention.form_of(work);
      if (form == AttentionForm::kNaive) return naive_attention_time_s(costs, work, sms);
      AttentionShape shape;
      shape.batch_heads = work.m;
      shape.kv_heads = work.m;
      shape.query_length = shape.kv_length = work.n;
      shape.head_dim = work.k;
      shape.causal = work.causal;
      shape.attended = work.attended;
      // Ordered: the passes over the gradients of scores follow one another.
      const profiles::AttentionParams& params =
          form == AttentionForm::kFlash ? costs.other_attention.flash : costs.attention;
      return attention_time_s(params, costs.rates, shape, work.backward, sms) +
             (work.ordered ? memory_time_s(costs.memory, costs.rates,
                                           static_cast<double>(work.bytes), 1, taken)
                           : 0);
    }
    case WorkKind::kMemory:
      if (work.bytes <= 0) return 0;
      return (times - 1) * costs.memory.t1_s +
             memory_time_s(costs.memory, costs.rates, static_cast<double>(work.bytes),
                           copy_efficiency(costs.copies, work), taken);
    default:
      return 0;
  }
}

/// The same without a memory of products.
double kernel_time_s(const KernelCosts& costs, const Work& work, const Sharing& sharing = {});

class OpCosts {
 public:
  explicit OpCosts(const profiles::Profile& profile);

  /// Where the groups of what follows are. Several GPUs are under the load of training
  /// (Gpu::training_load); short runs on one hold their burst clocks.
  void place(const Layout& layout);
  /// Kernels on the part of a device that each of `sharers` ranks has.
  void share_device(std::int64_t sharers);

  const profiles::Profile& profile() const { return profile_; }
  const KernelCosts& kernels() const { return kernels_; }
  const Layout& layout() const { return layout_; }
  /// What an NVLink domain brings to the network.
  const NodeNetwork& network() const { return network_; }
  const Gpu& gpu() const { return profile_.cluster.gpu; }

  /// Seconds of the kernels of an operation; 0 where it has none.
  double kernel_s(const Op& op, const Sharing& sharing = {});
  /// Of a GEMM that takes `gemm_s` alone, with the collective inside it.
  double with_collective_s(const Op& op, double gemm_s);
  /// Infinite where nodes are not linked.
  CollectiveCost collective(const CollectiveWork& work) const;
  /// What a collective leaves to kernels beside it.
  static Sharing sharing(const CollectiveCost& cost);
  /// A message of `bytes` between neighbours in the pipeline.
  double transfer_s(std::int64_t stage, double bytes) const;
  double memory_s(double bytes, double efficiency) const;
  /// Over the link to the host. Both ways at once reach together what one reaches alone
  /// (nvbandwidth: 175 and 172 GB/s at once, 359 and 377 alone, GB300).
  double host_link_s(double bytes) const { return bytes / profile_.cluster.gpu.pcie_bytes_per_s; }
  /// The host's time for one kernel.
  double launch_s(bool backward) const;
  /// To launch the operation; nothing where a CUDA graph holds it.
  double launches_s(const Op& op, bool backward) const;
  /// The Python around those launches.
  double module_s(const Op& op, bool backward) const;
  /// By what kernels stretch a collective beside them.
  double stretched(bool in_node) const {
    const profiles::ContentionParams& contention = profile_.cost.contention.values;
    return in_node ? contention.nvlink_collectives : contention.other_collectives;
  }

 private:
  struct Typed {
    TypedGemm gemm;
    double operand_bytes = 2;
  };
  void set_kernels();
  CollectiveCost tokens_to_experts(const CollectiveWork& work) const;
  double gemm_s(const Op& op, std::int64_t groups, int sms);
  double gemms_s(const Op& op, int sms);
  double exchanged_pieces_s(const Op& op, double gemm_s) const;

  profiles::Profile profile_;
  KernelCosts kernels_;
  NodeNetwork network_;
  Layout layout_;
  std::int64_t sharers_ = 1;
  bool loaded_ = false;
  std::array<Typed, 4> typed_;   // by Precision
  double loss_bytes_per_s_ = 0;  // at most, by the framework's kernel; 0: as others
  std::unordered_map<ProductShape, double, ProductShapeHash> gemms_;
};

// Products whose result is wider than their operands, or added to what is there: Work::bytes is
// then the HBM traffic of one, which it cannot be quicker than on a GPU.

/// `seconds` of the work, or what its traffic takes where that is more. A core reads what it adds
/// to when it is through with a tile's products, and nothing hides that.
inline double with_result_traffic(const KernelCosts& costs, const Work& work, double seconds) {
  if (work.kind != WorkKind::kGemm || work.bytes == 0) return seconds;
  const double hbm = costs.rates.hbm_bytes_per_s * costs.rates.hbm_efficiency;
  if (costs.rates.processor) {
    const std::int64_t own =
        work.dtype_bytes * work.k * (work.m + work.n) + bytes_of(DType::kFp32) * work.m * work.n;
    return seconds +
           work.kernels * static_cast<double>(std::max<std::int64_t>(0, work.bytes - own)) / hbm;
  }
  const double least = costs.gemm.t0_s + static_cast<double>(work.bytes) / hbm;
  return std::max(seconds, work.kernels * least);
}

// Costs are real seconds; timelines count whole nanoseconds.

/// No kernel or transfer of a step takes ten days.
inline constexpr double kLongestOperation_s = 10 * 24 * 3600;
/// A century, beyond which sums of nanoseconds would end.
inline constexpr double kLongestStep_s = 100.0 * 365 * 24 * 3600;

/// Throws Error: `what` would take `seconds`.
[[noreturn]] void refuse_duration(const char* what, double seconds);

/// Throws Error for what is longer than kLongestOperation_s or no number, as of a rate that no
/// machine has.
inline Nanoseconds to_ns(double seconds) {
  if (!(seconds <= kLongestOperation_s)) refuse_duration("one operation of the step", seconds);
  return static_cast<Nanoseconds>(std::llround(seconds * 1e9));
}

}  // namespace shardwright::sim
