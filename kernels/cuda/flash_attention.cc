// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/flash_attention.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "sim/core/base/check.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kVector = 8;          // bf16 numbers in the 16 bytes of a copy
constexpr std::int64_t kMostBlocks = 65535;  // along y and z of a grid
constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max() - 256;

Bytes delta_bytes(const AttentionShape& shape) {
  const Bytes bytes = 4 * shape.tokens() * shape.heads;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class FlashAttention : public Attention {
 public:
  std::string_view name() const override { return name_of(AttentionForm::kFlash); }

  std::string refusal(const AttentionProblem& problem) override {
    const AttentionShape& s = problem.shape;
    std::string reason = attention_refusal(AttentionForm::kFlash, needs_of(problem));
    if (!reason.empty()) return reason;
    if (problem.packed_stride % kVector != 0 || problem.out_stride % kVector != 0) {
      return fmt::format("takes rows aligned to 16 bytes, not strides of {} and {}",
                         problem.packed_stride, problem.out_stride);
    }
    if (!(s.scale > 0.0)) return fmt::format("takes a positive scale, not {}", s.scale);
    if (s.heads > kMostBlocks || s.batch > kMostBlocks ||
        std::max({s.seq, problem.packed_stride, problem.out_stride}) > kMostTokens) {
      return "has no launch for so many tokens, heads or sequences";
    }
    return {};
  }

  Bytes forward_workspace_bytes(const AttentionProblem&) override { return 0; }
  Bytes backward_workspace_bytes(const AttentionProblem& problem) override {
    return flash_workspace_bytes(problem.shape);
  }

  void forward(const AttentionProblem& problem, const AttentionForward& arrays,
               cudaStream_t stream) override {
    check(problem, arrays.first_key);
    flash_forward(problem, arrays, stream);
  }
  void backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                cudaStream_t stream) override {
    check(problem, arrays.first_key);
    flash_backward(problem, arrays, stream);
  }

 private:
  void check(const AttentionProblem& problem, const std::int32_t* first_key) {
    SHARDWRIGHT_CHECK(refusal(problem).empty(), "flash {}", refusal(problem));
    SHARDWRIGHT_CHECK(problem.documents || first_key == nullptr,
                      "a problem without documents has first keys");
  }
};

}  // namespace

Bytes flash_workspace_bytes(const AttentionShape& shape) {
  const std::int64_t spans = (shape.seq + kFlashSpanQueries - 1) / kFlashSpanQueries;
  return delta_bytes(shape) + static_cast<Bytes>(sizeof(int2)) * spans * shape.batch;
}

FlashWorkspace flash_workspace(const AttentionShape& shape, void* base) {
  return {static_cast<float*>(base),
          reinterpret_cast<int2*>(static_cast<std::byte*>(base) + delta_bytes(shape))};
}

std::unique_ptr<Attention> make_flash_attention() {
  return std::make_unique<FlashAttention>();
}

}  // namespace shardwright::kernels::cuda
