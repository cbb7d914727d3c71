// SPDX-License-Identifier: Apache-2.0
// Which attention the native executor runs on a GPU: one rule for those that run it (exec/cuda) and
// those that price it (sim/cost).
//
// The forms stand in the order in which they are preferred. cuDNN's own answer for a GPU comes at
// run time, after this rule; tests/exec_cudnn holds both against each other on six GPUs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/core/units.h"

namespace shardwright {

enum class AttentionForm : std::uint8_t { kCudnn, kCudnnOrdered, kFlash, kNaive };
inline constexpr int kAttentionForms = 4;
/// "cudnn", "cudnn-ordered", "flash", "naive": as --attention-kernel takes it.
std::string_view name_of(AttentionForm form);

/// What a choice of attention depends on.
struct AttentionNeeds {
  DType dtype = DType::kBf16;
  std::int64_t head_dim = 128;
  bool plain_scores = true;    // neither cap nor slopes
  bool documents = false;      // several in a sequence, masked from each other
  bool deterministic = false;  // equal inputs must give equal bits
  /// The GPU is one for whose backward pass cuDNN has an engine for heads beyond 128.
  bool has_wide_engine = true;
};

/// Of Gpu::architecture: cuDNN 9.19 has that engine on Hopper alone.
bool has_wide_attention_engine(std::string_view architecture);

/// Why that form cannot compute it, as the end of a sentence that begins with its name ("takes
/// bf16, not fp32"); empty when it can.
std::string attention_refusal(AttentionForm form, const AttentionNeeds& needs);

/// The first that can; the last, where none can.
AttentionForm attention_form(const AttentionNeeds& needs);

}  // namespace shardwright
