// SPDX-License-Identifier: Apache-2.0
// The nonlinear part of the feed-forward block on CUDA: gated (SwiGLU, GeGLU) or plain.
// Values are computed in fp32 and rounded once.
#pragma once

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "sim/core/model.h"

using cudaStream_t = struct CUstream_st*;

namespace shardwright::kernels::cuda {

/// y = f(x) when `in` is as wide as y; y = f(gate) * up when it is [rows, 2 F], gate beside up.
template <class T>
void activation_forward(cudaStream_t stream, Activation activation, host::Matrix<const T> in,
                        host::Matrix<T> y);
/// d_in, which may be `in`, has in's shape.
template <class T>
void activation_backward(cudaStream_t stream, Activation activation, host::Matrix<const T> in,
                         host::Matrix<const T> d_y, host::Matrix<T> d_in);

}  // namespace shardwright::kernels::cuda
