// SPDX-License-Identifier: Apache-2.0
// How kernels/cuda/launch.h enqueues a kernel on the processor: as a task of the stream, in the
// runtime of fake_cuda.h.
#pragma once

#include "tests/support/cuda_on_cpu/emulation.h"
#include "tests/support/cuda_on_cpu/runtime_api.h"  // IWYU pragma: export

namespace cuda_on_cpu {

cudaError_t enqueue(cudaStream_t stream, const Launch& launch);

}  // namespace cuda_on_cpu
