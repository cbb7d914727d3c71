// SPDX-License-Identifier: Apache-2.0
// The NVIDIA part of the machine: driver, GPUs, toolkit, NCCL, CUPTI, cuDNN.
#pragma once

#include "cli/machine/machine.h"

namespace shardwright::cli {

/// Appends the components cuda_driver, gpu, cuda_toolkit, cublas_lt, nccl, cupti, cudnn and nvrtc,
/// and fills `gpus`.
void probe_cuda(Machine& machine);

}  // namespace shardwright::cli
