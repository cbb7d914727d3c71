// SPDX-License-Identifier: Apache-2.0
// The nonlinear part of the feed-forward block: gated (SwiGLU, GeGLU) or plain (GELU, ReLU).
//
// Gated: y = f(gate) * up. Gate and up may be two matrices or the halves of one (the two views then
// share a buffer and a stride). Values are computed in fp32 and rounded once. SiLU, the tanh form
// of GELU and ReLU are vectorised; the exact GELU calls the C library's erf.
#pragma once

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/host/parallel.h"
#include "sim/core/model.h"

namespace shardwright::kernels::host {

/// y = f(gate) * up. gate and up have one stride.
template <class T>
void gated_forward(Parallel& parallel, Activation activation, Matrix<const T> gate,
                   Matrix<const T> up, Matrix<T> y);
/// The gradients of gate and up, which have the stride of gate and up and may be the same memory.
template <class T>
void gated_backward(Parallel& parallel, Activation activation, Matrix<const T> gate,
                    Matrix<const T> up, Matrix<const T> d_y, Matrix<T> d_gate, Matrix<T> d_up);

/// y = f(x).
template <class T>
void activation_forward(Parallel& parallel, Activation activation, Matrix<const T> x, Matrix<T> y);
/// d_x, which may be x, has x's stride.
template <class T>
void activation_backward(Parallel& parallel, Activation activation, Matrix<const T> x,
                         Matrix<const T> d_y, Matrix<T> d_x);

}  // namespace shardwright::kernels::host
