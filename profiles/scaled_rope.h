// SPDX-License-Identifier: Apache-2.0
// What rotary embeddings cost whose sines and cosines are scaled (YaRN) with software whose fused
// kernel does not scale them: profiles/data/parallel_kernels.json, scaled_rope.
#pragma once

#include <string>
#include <vector>

#include "sim/core/stack.h"

namespace shardwright::profiles {

struct ScaledRope {
  std::vector<std::string> stacks;  // by family
  KernelGroup kernels;              // per element of q and k
};

/// The shipped one, read once. Throws Error.
const ScaledRope& scaled_rope();

}  // namespace shardwright::profiles
