// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding on CUDA, in place, on query and key heads; Hugging Face's half-rotate
// order (kernels/host/rope.h).
#pragma once

#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/bf16.h"

using cudaStream_t = struct CUstream_st*;

namespace shardwright::kernels::cuda {

/// Rotates every head by its token's angle; `backward` turns the gradient the other way. Token t
/// has position positions[t], or t % seq when positions is null. The table is in device memory; a
/// position outside of it makes NaNs.
template <class T>
void rope(cudaStream_t stream, const host::Rows& rows, const RopeView& table,
          const std::int32_t* positions, std::int64_t seq, bool backward, T* x);

}  // namespace shardwright::kernels::cuda
