// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/reserved.h"

#include "sim/core/features.h"
#include "sim/core/layout.h"

namespace shardwright::sim {
namespace {

/// Communicators that a rank is part of.
int communicators(const Layout& layout) {
  int count = 1;  // the world's
  for (const CommGroup group : {CommGroup::kTensor, CommGroup::kContext, CommGroup::kPipeline,
                                CommGroup::kExpert, CommGroup::kData}) {
    if (layout.group(group).size > 1) ++count;
  }
  return count;
}

}  // namespace

Bytes runtime_bytes(const profiles::Profile& profile, const Plan& plan) {
  const Bytes of_gpu = profile.cluster.gpu.runtime_bytes;
  if (!divides_replica(plan)) return of_gpu;
  const int count = communicators(layout_of(plan, profile.cluster));
  return of_gpu + static_cast<Bytes>(count * profile.stack.parallel.communicator_bytes);
}

bool knows_reserved(const Plan& plan, const Stack& stack) {
  return stack.memory != MemoryManager::kCachingAllocator || plan.parallel.pp > 1;
}

Bytes estimated_reserved_bytes(const MemoryPeak& allocated, const Stack& stack) {
  return allocated.bytes + static_cast<Bytes>(stack.parallel.fragmentation *
                                              static_cast<double>(allocated.passing_bytes));
}

Bytes least_reserved_bytes(const MemoryPeak& allocated, const Plan& plan, const Stack& stack) {
  return knows_reserved(plan, stack) ? estimated_reserved_bytes(allocated, stack) : allocated.bytes;
}

}  // namespace shardwright::sim
