// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/activation.h"
#include "kernels/cuda/launch.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr float kRootTwoOverPi = 0.7978845608028654f;
constexpr float kRootHalf = 0.7071067811865476f;
constexpr float kInverseRootTwoPi = 0.3989422804014327f;
constexpr float kGeluCubic = 0.044715f;

/// f(x) and f'(x) of one activation.
struct ValueAndSlope {
  float value, slope;
};

template <Activation kActivation, class T>
__device__ __forceinline__ ValueAndSlope activate(float x) {
  if constexpr (kActivation == Activation::kSilu) {
    const float s = reciprocal<T>(1.0f + exponential<T>(-x));
    const float value = x * s;
    return {value, __fmaf_rn(value, 1.0f - s, s)};
  } else if constexpr (kActivation == Activation::kGelu) {
    const float cdf = 0.5f * erfcf(-x * kRootHalf);  // keeps its relative precision far below zero
    const float density = kInverseRootTwoPi * exponential<T>(x * x * -0.5f);
    return {x * cdf, __fmaf_rn(x, density, cdf)};
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    // (1 + tanh u) / 2 is the sigmoid of 2u, which keeps its relative precision far below zero. The
    // square is bounded so that infinity times zero cannot arise where all is saturated.
    const float square = fminf(x * x, 1e4f);
    const float twice_u = 2.0f * kRootTwoOverPi * x * __fmaf_rn(kGeluCubic, square, 1.0f);
    const float e = exponential<T>(-twice_u);
    const float s = reciprocal<T>(1.0f + e);
    const float rest = isinf(e) ? 1.0f : e * s;  // 1 - s
    const float twice_d_u = 2.0f * kRootTwoOverPi * __fmaf_rn(3.0f * kGeluCubic, square, 1.0f);
    return {x * s, __fmaf_rn(x * s * rest, twice_d_u, s)};
  } else {
    return {fmaxf(x, 0.0f), x > 0.0f ? 1.0f : 0.0f};
  }
}

template <class T>
struct ActivationArguments {
  const T* gate;  // null: plain
  const T* up;
  const T* d_y;
  T* y;
  T* d_gate;
  T* d_up;
  std::int64_t rows, cols, in_stride, out_stride, d_in_stride;
};

template <Activation kActivation, bool kGated, class T, int N>
__global__ void __launch_bounds__(kThreads) activation_forward_kernel(ActivationArguments<T> a) {
  for_row_chunks(a.rows, a.cols / N, [&](std::int64_t row, std::int64_t chunk) {
    const std::int64_t in = row * a.in_stride + chunk * N;
    float up[N], y[N];
    load(a.up + in, up);
    if constexpr (kGated) {
      float gate[N];
      load(a.gate + in, gate);
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] = activate<kActivation, T>(gate[j]).value * up[j];
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] = activate<kActivation, T>(up[j]).value;
    }
    store(a.y + row * a.out_stride + chunk * N, y);
  });
}

template <Activation kActivation, bool kGated, class T, int N>
__global__ void __launch_bounds__(kThreads) activation_backward_kernel(ActivationArguments<T> a) {
  for_row_chunks(a.rows, a.cols / N, [&](std::int64_t row, std::int64_t chunk) {
    const std::int64_t in = row * a.in_stride + chunk * N;
    const std::int64_t d_in = row * a.d_in_stride + chunk * N;
    float up[N], d[N];
    load(a.up + in, up);
    load(a.d_y + row * a.out_stride + chunk * N, d);
    if constexpr (kGated) {
      float gate[N];
      load(a.gate + in, gate);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const ValueAndSlope f = activate<kActivation, T>(gate[j]);
        gate[j] = d[j] * up[j] * f.slope;
        up[j] = d[j] * f.value;
      }
      store(a.d_gate + d_in, gate);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) up[j] = d[j] * activate<kActivation, T>(up[j]).slope;
    }
    store(a.d_up + d_in, up);
  });
}

/// Calls body(activation as a constant).
template <class Body>
void with_activation(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::kSilu:
      return body(std::integral_constant<Activation, Activation::kSilu>{});
    case Activation::kGelu:
      return body(std::integral_constant<Activation, Activation::kGelu>{});
    case Activation::kGeluTanh:
      return body(std::integral_constant<Activation, Activation::kGeluTanh>{});
    case Activation::kRelu:
      return body(std::integral_constant<Activation, Activation::kRelu>{});
  }
}

/// Splits `in` into gate and up.
template <class T>
ActivationArguments<T> arguments_of(host::Matrix<const T> in, std::int64_t cols) {
  ActivationArguments<T> a{};
  const bool gated = in.cols != cols;
  a.gate = gated ? in.data : nullptr;
  a.up = gated ? in.data + cols : in.data;
  a.rows = in.rows;
  a.cols = cols;
  a.in_stride = in.stride;
  return a;
}

}  // namespace

template <class T>
void activation_forward(cudaStream_t stream, Activation activation, host::Matrix<const T> in,
                        host::Matrix<T> y) {
  if (y.rows == 0) return;
  ActivationArguments<T> a = arguments_of(in, y.cols);
  a.y = y.data;
  a.out_stride = y.stride;
  constexpr int kN = kWidth<T>;
  const bool wide = (y.cols | y.stride | in.stride) % kN == 0 &&
                    aligned<kN>(in.data, static_cast<const T*>(y.data));
  with_width<kN>(wide, [&](auto n) {
    with_activation(activation, [&](auto f) {
      const RowTiles tiles = row_tiles(y.rows, y.cols / n());
      const auto kernel = a.gate != nullptr ? activation_forward_kernel<f(), true, T, n()>
                                            : activation_forward_kernel<f(), false, T, n()>;
      launch(kernel, {tiles.grid, tiles.block}, stream, a);
    });
  });
}

template <class T>
void activation_backward(cudaStream_t stream, Activation activation, host::Matrix<const T> in,
                         host::Matrix<const T> d_y, host::Matrix<T> d_in) {
  if (d_y.rows == 0) return;
  ActivationArguments<T> a = arguments_of(in, d_y.cols);
  a.d_y = d_y.data;
  a.out_stride = d_y.stride;
  a.d_gate = d_in.data;
  a.d_up = a.gate != nullptr ? d_in.data + d_y.cols : d_in.data;
  a.d_in_stride = d_in.stride;
  constexpr int kN = kWidth<T>;
  const bool wide = (d_y.cols | d_y.stride | in.stride | d_in.stride) % kN == 0 &&
                    aligned<kN>(in.data, d_y.data, static_cast<const T*>(d_in.data));
  with_width<kN>(wide, [&](auto n) {
    with_activation(activation, [&](auto f) {
      const RowTiles tiles = row_tiles(d_y.rows, d_y.cols / n());
      const auto kernel = a.gate != nullptr ? activation_backward_kernel<f(), true, T, n()>
                                            : activation_backward_kernel<f(), false, T, n()>;
      launch(kernel, {tiles.grid, tiles.block}, stream, a);
    });
  });
}

#define SHARDWRIGHT_INSTANTIATE(T)                                                      \
  template void activation_forward<T>(cudaStream_t, Activation, host::Matrix<const T>,  \
                                      host::Matrix<T>);                                 \
  template void activation_backward<T>(cudaStream_t, Activation, host::Matrix<const T>, \
                                       host::Matrix<const T>, host::Matrix<T>);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::cuda
