// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/simd/ops.h"
#include "kernels/host/simd/vec_math.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {
namespace {

constexpr float kRootTwoOverPi = 0.7978845608028654f;
constexpr float kRootHalf = 0.7071067811865476f;
constexpr float kInverseRootTwoPi = 0.3989422804014327f;
constexpr float kGeluCubic = 0.044715f;

/// f(x) and f'(x) of one activation.
struct ValueAndSlope {
  Vec value, slope;
};

template <Activation kActivation>
SHARDWRIGHT_INLINE ValueAndSlope activate(Vec x) {
  const Vec one = splat(1.0f);
  if constexpr (kActivation == Activation::kSilu) {
    const Vec s = sigmoid(x);
    const Vec value = x * s;
    return {value, madd(value, one - s, s)};
  } else if constexpr (kActivation == Activation::kGelu) {
    const Vec cdf = splat(0.5f) * (one + error_function(x * splat(kRootHalf)));
    const Vec density = splat(kInverseRootTwoPi) * exponential(x * x * splat(-0.5f));
    return {x * cdf, madd(x, density, cdf)};
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    // (1 + tanh u) / 2 is the sigmoid of 2u, which keeps its relative precision far below zero. The
    // square is bounded so that infinity times zero cannot arise where all is saturated.
    const Vec square = minimum(x * x, splat(1e4f));
    const Vec twice_u = splat(2.0f * kRootTwoOverPi) * x * madd(splat(kGeluCubic), square, one);
    const Vec e = exponential(-twice_u);
    const Vec s = one / (one + e);
    const Vec twice_d_u =
        splat(2.0f * kRootTwoOverPi) * madd(splat(3.0f * kGeluCubic), square, one);
    return {x * s, madd(x * s * (e * s), twice_d_u, s)};
  } else {
    const Vec zero = splat(0.0f);
    return {maximum(x, zero), x > zero ? one : zero};
  }
}

template <Activation kActivation, class T>
void forward(const ActivationRows<T>& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T* up = a.up + row * a.in_stride;
    T* y = a.y + row * a.out_stride;
    if (a.gate == nullptr) {
      for_vectors(a.cols, [&](std::int64_t i, auto lanes) {
        store(y + i, activate<kActivation>(load(up + i, lanes)).value, lanes);
      });
      continue;
    }
    const T* gate = a.gate + row * a.in_stride;
    for_vectors(a.cols, [&](std::int64_t i, auto lanes) {
      const Vec value = activate<kActivation>(load(gate + i, lanes)).value;
      store(y + i, value * load(up + i, lanes), lanes);
    });
  }
}

template <Activation kActivation, class T>
void backward(const ActivationRows<T>& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T* d_y = a.d_y + row * a.out_stride;
    const T* up = a.up + row * a.in_stride;
    T* d_up = a.d_up + row * a.in_stride;
    if (a.gate == nullptr) {
      for_vectors(a.cols, [&](std::int64_t i, auto lanes) {
        const Vec slope = activate<kActivation>(load(up + i, lanes)).slope;
        store(d_up + i, load(d_y + i, lanes) * slope, lanes);
      });
      continue;
    }
    const T* gate = a.gate + row * a.in_stride;
    T* d_gate = a.d_gate + row * a.in_stride;
    for_vectors(a.cols, [&](std::int64_t i, auto lanes) {
      const Vec d = load(d_y + i, lanes);
      const Vec u = load(up + i, lanes);
      const auto [value, slope] = activate<kActivation>(load(gate + i, lanes));
      store(d_up + i, d * value, lanes);
      store(d_gate + i, d * u * slope, lanes);
    });
  }
}

}  // namespace

template <class T>
void activation_forward(Activation activation, const ActivationRows<T>& a, std::int64_t begin,
                        std::int64_t end) {
  switch (activation) {
    case Activation::kSilu:
      return forward<Activation::kSilu>(a, begin, end);
    case Activation::kGelu:
      return forward<Activation::kGelu>(a, begin, end);
    case Activation::kGeluTanh:
      return forward<Activation::kGeluTanh>(a, begin, end);
    case Activation::kRelu:
      return forward<Activation::kRelu>(a, begin, end);
  }
}

template <class T>
void activation_backward(Activation activation, const ActivationRows<T>& a, std::int64_t begin,
                         std::int64_t end) {
  switch (activation) {
    case Activation::kSilu:
      return backward<Activation::kSilu>(a, begin, end);
    case Activation::kGelu:
      return backward<Activation::kGelu>(a, begin, end);
    case Activation::kGeluTanh:
      return backward<Activation::kGeluTanh>(a, begin, end);
    case Activation::kRelu:
      return backward<Activation::kRelu>(a, begin, end);
  }
}

#define SHARDWRIGHT_INSTANTIATE(T)                                                         \
  template void activation_forward<T>(Activation, const ActivationRows<T>&, std::int64_t,  \
                                      std::int64_t);                                       \
  template void activation_backward<T>(Activation, const ActivationRows<T>&, std::int64_t, \
                                       std::int64_t);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
