// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy on CUDA: the loss of rows of logits, which become their own gradient.
#pragma once

#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/cuda/stream.h"

namespace shardwright::kernels::cuda {

/// Adds -log softmax(logits)[target] over the rows to *loss, in fp64 and a fixed order, and the
/// number of rows that count to *count. With `gradient` the logits become the gradient of that sum,
/// zero in rows whose target is `ignored`. A target that is neither a column nor ignored makes the
/// loss NaN. `losses` has an element a row; loss and count are in device memory. The row is read
/// twice and written once. With a `softcap` logits are softcap * tanh(logit / softcap) first, and
/// the gradient is that of logits before it.
template <class T>
void cross_entropy(cudaStream_t stream, host::Matrix<T> logits, const std::int32_t* targets,
                   std::int32_t ignored, bool gradient, double* loss, std::int64_t* count,
                   double* losses, double softcap = 0);

}  // namespace shardwright::kernels::cuda
