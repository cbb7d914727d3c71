// SPDX-License-Identifier: Apache-2.0
// What a stage of a pipeline runs: passes of its chunks, one micro-batch at a time.
//
// Kinds and letters are those of PyTorch's pipelining IR
// (torch/distributed/pipelining/schedules.py, _ComputationType): F forward, B both gradients of
// backward, I the gradient of the input alone, W that of the weights.
#pragma once

#include <cstdint>
#include <vector>

namespace shardwright {

enum class PassKind : std::uint8_t {
  kForward,        // F
  kBackward,       // B
  kBackwardInput,  // I: what the stage before waits for
  kBackwardWeight  // W
};

constexpr char letter_of(PassKind kind) {
  return "FBIW"[static_cast<int>(kind)];
}
/// The pass makes the gradient of its input.
constexpr bool makes_input_gradient(PassKind kind) {
  return kind == PassKind::kBackward || kind == PassKind::kBackwardInput;
}
/// The pass makes the gradients of its weights, and what forward kept may go.
constexpr bool makes_weight_gradient(PassKind kind) {
  return kind == PassKind::kBackward || kind == PassKind::kBackwardWeight;
}

struct Action {
  PassKind kind = PassKind::kForward;
  /// This action and the next one run as one block in which communication of one hides behind
  /// computation of the other (OVERLAP_F_B).
  bool overlaps_next = false;
  std::int16_t chunk = 0;  // of the stage
  std::int32_t micro_batch = 0;
  bool operator==(const Action&) const = default;
};

/// In the order in which the host of a stage issues them.
using Actions = std::vector<Action>;

}  // namespace shardwright
