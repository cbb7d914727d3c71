// SPDX-License-Identifier: Apache-2.0
// How much of its GPUs a run uses: model FLOPs against the dense peak of the data sheet, and
// against the best product that was measured on such a GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "profiles/gpu_file.h"
#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/units.h"

namespace shardwright::sim {

struct Utilisation {
  double step_flops = 0;  // of all ranks, as MFU counts: 6 a matrix weight and token, causal half
  double peak_flops = 0;  // dense, of all GPUs that the run uses; 0: not known
  double product_flops = 0;  // the same from the best measured product; 0: none was measured
  Bytes memory_bytes = 0;    // of one GPU
  std::string gpu;           // id in the profiles; empty: not known
  double gpus = 0;           // that the run uses
  std::string basis;         // "1 x NVIDIA H200, 989 TFLOP/s dense bf16 each"

  std::optional<double> mfu(double step_s) const { return share(peak_flops, step_s); }
  std::optional<double> of_products(double step_s) const { return share(product_flops, step_s); }

 private:
  std::optional<double> share(double flops, double step_s) const {
    if (flops <= 0 || step_s <= 0) return std::nullopt;
    return step_flops / step_s / flops;
  }
};

/// GPUs of one kind.
struct UsedGpus {
  profiles::SeenGpu kind;
  std::int64_t count = 0;  // 0: the host
};

/// Of a run on `gpus`, of which it uses as many as it has ranks. Of the host nothing but the FLOPs
/// is known.
Utilisation utilisation_of(const Model& model, const Plan& plan, const UsedGpus& gpus);
/// Takes the best product of the profile, where it was measured on such a GPU.
void count_measured_products(Utilisation& use, const profiles::Profile& profile, DType dtype);

/// What is known of such GPUs without measuring, in the machine they are mostly sold in; `ranks`
/// share them when there are more. Throws Error when this kind is not known.
profiles::Profile gpu_profile(const UsedGpus& gpus, std::int64_t ranks);

}  // namespace shardwright::sim
