// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/attention.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "sim/core/base/error.h"
#ifdef SHARDWRIGHT_HAS_CUDNN
#include "exec/cudnn/attention.h"
#endif

namespace shardwright::exec::cuda {
namespace {

/// Why one cannot compute the problem where the policy holds, as the end of a sentence.
std::string refusal(kernels::cuda::Attention& one, const kernels::cuda::AttentionProblem& problem,
                    const AttentionPolicy& policy) {
  if (policy.deterministic && !one.repeatable()) return "does not repeat to the bit";
  if (std::string reason = one.refusal(problem); !reason.empty()) return reason;
  const Bytes forward = one.forward_workspace_bytes(problem);
  const Bytes backward = one.backward_workspace_bytes(problem);
  if (forward <= policy.most_forward_bytes && backward <= problem.most_workspace_bytes) return {};
  return fmt::format("needs {} and {} bytes of workspace, more than the plan has", forward,
                     backward);
}

}  // namespace

std::array<std::int64_t, 3> document_bounds(std::int64_t batch) {
  return {4 * batch, 16 * batch, 64 * batch};
}

std::int64_t document_bound(std::int64_t batch, std::int64_t documents) {
  if (documents == 0) return 0;
  for (const std::int64_t bound : document_bounds(batch)) {
    if (documents <= bound) return bound;
  }
  return 0;
}

AttentionSet::AttentionSet() {
#ifdef SHARDWRIGHT_HAS_CUDNN
  implementations_.push_back(cudnn::make_attention(cudnn::QueryGradient::kAccumulated));
  implementations_.push_back(cudnn::make_attention(cudnn::QueryGradient::kOrdered));
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

std::string AttentionSet::lacks() {
#ifdef SHARDWRIGHT_HAS_CUDNN
  const std::string& why = cudnn::library_refusal();
  return why.empty() ? why : "cudnn " + why;
#else
  return "cudnn is not in this build, which found no cuDNN or no cudnn-frontend";
#endif
}

bool AttentionSet::repeats(std::string_view name) const {
  return std::any_of(implementations_.begin(), implementations_.end(),
                     [&](const auto& one) { return one->name() == name && one->repeatable(); });
}

AttentionChoice AttentionSet::choose(const kernels::cuda::AttentionProblem& problem,
                                     const AttentionPolicy& policy) {
  const std::string_view wish = policy.wish;
  const auto wished = std::find_if(implementations_.begin(), implementations_.end(),
                                   [&](const auto& one) { return one->name() == wish; });
  if (wish != "auto" && wished == implementations_.end()) {
    throw Error(fmt::format("attention is '{}', expected auto or one of {}", wish,
                            fmt::join(names(), ", ")));
  }
  std::string because;
  const auto takes = [&](kernels::cuda::Attention& one) {
    std::string reason = refusal(one, problem, policy);
    if (reason.empty()) return true;
    because += fmt::format("{}{} {}", because.empty() ? "" : "; ", one.name(), reason);
    return false;
  };
  if (wish != "auto" && takes(**wished)) {
    return {wished->get(), fmt::format("attention by {}: as asked", wish)};
  }
  for (const auto& one : implementations_) {
    const bool is_allowed = one->repeatable() || !policy.deterministic;
    if (!is_allowed || one->name() == wish || !takes(*one)) continue;
    if (because.empty()) {
      because = policy.deterministic ? "the fastest that repeats to the bit"
                                     : "the fastest of this build";
    }
    return {one.get(), fmt::format("attention by {}: {}", one->name(), because)};
  }
  throw Error(fmt::format("no attention takes {} tokens with {} heads of {}: {}", problem.shape.seq,
                          problem.shape.heads, problem.shape.head_dim, because),
              ExitCode::kFailed);
}

}  // namespace shardwright::exec::cuda
