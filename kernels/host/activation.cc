// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/activation.h"

#include "kernels/host/simd/kernels.h"
#include "sim/core/base/check.h"
#include "sim/core/units.h"

namespace shardwright::kernels::host {
namespace {

template <class T>
void forward(Parallel& parallel, Activation activation, const T* gate, Matrix<const T> up,
             Matrix<T> y) {
  SHARDWRIGHT_CHECK(up.rows == y.rows && up.cols == y.cols, "activation of [{}, {}] to [{}, {}]",
                    up.rows, up.cols, y.rows, y.cols);
  const ActivationRows<T> args{.gate = gate,
                               .up = up.data,
                               .d_y = nullptr,
                               .y = y.data,
                               .d_gate = nullptr,
                               .d_up = nullptr,
                               .in_stride = up.stride,
                               .out_stride = y.stride,
                               .cols = y.cols};
  const auto& kernels = parallel.kernels().of<T>();
  parallel.for_ranges(y.rows, ceil_div(8192, y.cols),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        kernels.activation_forward(activation, args, begin, end);
                      });
}

template <class T>
void backward(Parallel& parallel, Activation activation, const T* gate, Matrix<const T> up,
              Matrix<const T> d_y, T* d_gate, Matrix<T> d_up) {
  SHARDWRIGHT_CHECK(up.rows == d_y.rows && up.cols == d_y.cols && d_up.stride == up.stride,
                    "activation gradient of [{}, {}] from [{}, {}]", up.rows, up.cols, d_y.rows,
                    d_y.cols);
  const ActivationRows<T> args{.gate = gate,
                               .up = up.data,
                               .d_y = d_y.data,
                               .y = nullptr,
                               .d_gate = d_gate,
                               .d_up = d_up.data,
                               .in_stride = up.stride,
                               .out_stride = d_y.stride,
                               .cols = d_y.cols};
  const auto& kernels = parallel.kernels().of<T>();
  parallel.for_ranges(d_y.rows, ceil_div(8192, d_y.cols),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        kernels.activation_backward(activation, args, begin, end);
                      });
}

}  // namespace

template <class T>
void gated_forward(Parallel& parallel, Activation activation, Matrix<const T> gate,
                   Matrix<const T> up, Matrix<T> y) {
  SHARDWRIGHT_CHECK(gate.rows == up.rows && gate.cols == up.cols && gate.stride == up.stride,
                    "gate [{}, {}] and up [{}, {}]", gate.rows, gate.cols, up.rows, up.cols);
  forward(parallel, activation, gate.data, up, y);
}

template <class T>
void gated_backward(Parallel& parallel, Activation activation, Matrix<const T> gate,
                    Matrix<const T> up, Matrix<const T> d_y, Matrix<T> d_gate, Matrix<T> d_up) {
  SHARDWRIGHT_CHECK(gate.stride == up.stride && d_gate.stride == up.stride, "strides {}, {}, {}",
                    gate.stride, up.stride, d_gate.stride);
  backward(parallel, activation, gate.data, up, d_y, d_gate.data, d_up);
}

template <class T>
void activation_forward(Parallel& parallel, Activation activation, Matrix<const T> x, Matrix<T> y) {
  forward<T>(parallel, activation, nullptr, x, y);
}

template <class T>
void activation_backward(Parallel& parallel, Activation activation, Matrix<const T> x,
                         Matrix<const T> d_y, Matrix<T> d_x) {
  backward<T>(parallel, activation, nullptr, x, d_y, nullptr, d_x);
}

#define SHARDWRIGHT_INSTANTIATE(T)                                                              \
  template void gated_forward<T>(Parallel&, Activation, Matrix<const T>, Matrix<const T>,       \
                                 Matrix<T>);                                                    \
  template void gated_backward<T>(Parallel&, Activation, Matrix<const T>, Matrix<const T>,      \
                                  Matrix<const T>, Matrix<T>, Matrix<T>);                       \
  template void activation_forward<T>(Parallel&, Activation, Matrix<const T>, Matrix<T>);       \
  template void activation_backward<T>(Parallel&, Activation, Matrix<const T>, Matrix<const T>, \
                                       Matrix<T>);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host
