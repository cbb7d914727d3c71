// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/attention.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "sim/core/error.h"
#ifdef SHARDWRIGHT_HAS_CUDNN
#include "exec/cudnn/attention.h"
#endif

namespace shardwright::exec::cuda {

AttentionSet::AttentionSet() {
#ifdef SHARDWRIGHT_HAS_CUDNN
  implementations_.push_back(cudnn::make_attention(cudnn::QueryGradient::kOrdered));
  implementations_.push_back(cudnn::make_attention(cudnn::QueryGradient::kAccumulated));
#endif
  implementations_.push_back(kernels::cuda::make_flash_attention());
  implementations_.push_back(kernels::cuda::make_naive_attention());
}

AttentionSet::AttentionSet(Implementations implementations)
    : implementations_(std::move(implementations)) {}

std::vector<std::string_view> AttentionSet::names() const {
  std::vector<std::string_view> result;
  for (const auto& one : implementations_) result.push_back(one->name());
  return result;
}

AttentionChoice AttentionSet::choose(const kernels::cuda::AttentionProblem& problem,
                                     std::string_view wish) {
  auto wished = std::find_if(implementations_.begin(), implementations_.end(),
                             [&](const auto& one) { return one->name() == wish; });
  if (wish != "auto" && wished == implementations_.end()) {
    throw Error(fmt::format("attention is '{}', expected auto or one of {}", wish,
                            fmt::join(names(), ", ")));
  }
  std::string because;
  const auto takes = [&](kernels::cuda::Attention& one) {
    const std::string reason = one.refusal(problem);
    if (!reason.empty()) {
      because += fmt::format("{}{} {}", because.empty() ? "" : "; ", one.name(), reason);
    }
    return reason.empty();
  };
  const auto chosen = [&](kernels::cuda::Attention& one, std::string_view reason) {
    return AttentionChoice{&one, fmt::format("attention by {}: {}", one.name(), reason)};
  };
  if (wish != "auto" && takes(**wished)) return chosen(**wished, "as asked");
  for (const auto& one : implementations_) {
    if (!one->repeatable() || one->name() == wish || !takes(*one)) continue;
    return chosen(*one, because.empty() ? "the fastest of this build" : because);
  }
  throw Error(fmt::format("no attention takes {} tokens with {} heads of {}: {}", problem.shape.seq,
                          problem.shape.heads, problem.shape.head_dim, because),
              ExitCode::kFailed);
}

}  // namespace shardwright::exec::cuda
