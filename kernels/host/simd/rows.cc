// SPDX-License-Identifier: Apache-2.0
// Norms, rotary position embedding, activations and losses, row by row.
#include <cmath>

#include "kernels/host/simd/kernels.h"
#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {
namespace {

/// The squares of a centred norm (LayerNorm) are summed of differences from the mean: their own sum
/// would lose what a large mean has in common.
template <bool kCentred, class T>
void forward_rows(const NormForward<T>& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = a.rows.cols;
  const auto count = static_cast<float>(cols);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row_offset(a.rows, row);
    const T* x = a.x + at;
    float mean = 0.0f;
    if constexpr (kCentred) {
      mean = sum(cols, [&](Vec partial, std::int64_t i,
                           auto lanes) { return partial + load(x + i, lanes); }) /
             count;
      a.mean[row] = mean;
    }
    const float squares = sum(cols, [&](Vec partial, std::int64_t i, auto lanes) {
      Vec v = load(x + i, lanes);
      if constexpr (kCentred) {
        // Lanes that are not in use must not add the square of the mean.
        float held[kWidth];
        store(held, v - splat(mean), lanes);
        v = load(held, lanes);
      }
      return madd(v, v, partial);
    });
    const float rstd = 1.0f / std::sqrt(squares / count + a.eps);
    a.rstd[row] = rstd;
    for_vectors(cols, [&](std::int64_t i, auto lanes) {
      const Vec v = load(x + i, lanes), weight = load(a.weight + i, lanes);
      if constexpr (kCentred) {
        const Vec bias = a.bias != nullptr ? load(a.bias + i, lanes) : splat(0.0f);
        store(a.y + at + i, madd((v - splat(mean)) * splat(rstd), weight, bias), lanes);
      } else {
        store(a.y + at + i, v * splat(rstd) * (weight + splat(a.offset)), lanes);
      }
    });
  }
}

/// With n = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - n mean(g n)) and dw = sum over
/// rows of dy n; without centring mean and mean(g) are 0.
template <bool kCentred, class T>
void backward_rows(const NormBackward<T>& a, float* d_weight, std::int64_t begin,
                   std::int64_t end) {
  const std::int64_t cols = a.rows.cols;
  const auto count = static_cast<float>(cols);
  for (std::int64_t i = 0; i < cols; ++i) d_weight[i] = 0.0f;
  const auto weight = [&](std::int64_t i, auto lanes) {
    const Vec w = load(a.weight + i, lanes);
    return kCentred ? w : w + splat(a.offset);
  };
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row_offset(a.rows, row);
    const T* x = a.x + row_offset(a.x_rows, row);
    const T* d_y = a.d_y + at;
    const float rstd = a.rstd[row], mean = kCentred ? a.mean[row] : 0.0f;
    const auto normal = [&](std::int64_t i, auto lanes) {
      const Vec v = load(x + i, lanes);
      return (kCentred ? v - splat(mean) : v) * splat(rstd);
    };
    float gradients = 0.0f, products = 0.0f;
    if constexpr (kCentred) {
      gradients = sum(cols, [&](Vec partial, std::int64_t i, auto lanes) {
        return madd(load(d_y + i, lanes), weight(i, lanes), partial);
      });
      // Lanes that are not in use have no gradient, so that their difference adds nothing.
      products = sum(cols, [&](Vec partial, std::int64_t i, auto lanes) {
        return madd(load(d_y + i, lanes) * weight(i, lanes), normal(i, lanes), partial);
      });
    } else {
      products =
          rstd * sum(cols, [&](Vec partial, std::int64_t i, auto lanes) {
            return madd(load(d_y + i, lanes) * weight(i, lanes), load(x + i, lanes), partial);
          });
    }
    gradients /= count;
    products /= count;
    for_vectors(cols, [&](std::int64_t i, auto lanes) {
      const Vec d = load(d_y + i, lanes), n = normal(i, lanes);
      Vec d_normal = d * weight(i, lanes);
      if constexpr (kCentred) d_normal = d_normal - splat(gradients);
      Vec d_x = madd(n, splat(-products), d_normal) * splat(rstd);
      if (a.d_residual != nullptr) d_x = d_x + load(a.d_residual + at + i, lanes);
      store(d_weight + i, madd(d, n, load(d_weight + i, lanes)), lanes);
      store(a.d_x + at + i, d_x, lanes);
    });
  }
}

template <class T>
void norm_forward(const NormForward<T>& a, std::int64_t begin, std::int64_t end) {
  if (a.mean != nullptr) return forward_rows<true>(a, begin, end);
  forward_rows<false>(a, begin, end);
}

template <class T>
void norm_backward(const NormBackward<T>& a, float* d_weight, std::int64_t begin,
                   std::int64_t end) {
  if (a.mean != nullptr) return backward_rows<true>(a, d_weight, begin, end);
  backward_rows<false>(a, d_weight, begin, end);
}

// Element j is paired with element j + pairs ("half-rotate" order):
// (a, b) becomes (a cos - b sin, b cos + a sin); backward turns the other way.
template <class T>
void rope(const RopeRows<T>& r, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t token = row / r.rows.heads;
    const std::int64_t position = r.positions != nullptr ? r.positions[token] : token % r.seq;
    const float* cosine = r.cosine + position * r.pairs;
    const float* sine = r.sine + position * r.pairs;
    T* x = r.x + row_offset(r.rows, row);
    for_vectors(r.pairs, [&](std::int64_t i, auto lanes) {
      const Vec c = load(cosine + i, lanes);
      const Vec s = load(sine + i, lanes) * splat(r.direction);
      const Vec a = load(x + i, lanes);
      const Vec b = load(x + r.pairs + i, lanes);
      store(x + i, madd(-b, s, a * c), lanes);
      store(x + r.pairs + i, madd(a, s, b * c), lanes);
    });
  }
}

template void rope<float>(const RopeRows<float>&, std::int64_t, std::int64_t);
template void rope<BFloat16>(const RopeRows<BFloat16>&, std::int64_t, std::int64_t);

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

// Losses.

/// A row whose logits are capped on the way to the softmax. Its capped logits are kept until the
/// gradient is made of them, which falls with the slope of the cap, 1 - (capped / cap)^2.
void capped_row(const CrossEntropyRows& a, std::int64_t row) {
  float* logits = a.logits + row * a.vocab;
  const std::int32_t target = a.targets[row];
  const Vec cap = splat(a.softcap), inverse = splat(1.0f / a.softcap);
  for_vectors(a.vocab, [&](std::int64_t i, auto lanes) {
    store(logits + i, cap * hyperbolic_tangent(load(logits + i, lanes) * inverse), lanes);
  });
  const float top = largest(logits, a.vocab);
  const float of_target = logits[target];
  const float total = sum(a.vocab, [&](Vec partial, std::int64_t i, auto lanes) {
    float held[kWidth];
    store(held, exponential(load(logits + i, lanes) - splat(top)), lanes);
    // Lanes that are not in use hold e^(0 - top), which must not be added.
    return partial + load(held, lanes);
  });
  a.losses[row] = std::log(static_cast<double>(total)) + (static_cast<double>(top) - of_target);
  if (!a.gradient) return;
  const Vec factor = splat(1.0f / total);
  for_vectors(a.vocab, [&](std::int64_t i, auto lanes) {
    const Vec capped = load(logits + i, lanes);
    const Vec share = capped * inverse;
    const Vec slope = splat(1.0f) - share * share;
    store(logits + i, exponential(capped - splat(top)) * factor * slope, lanes);
  });
  const float share = of_target / a.softcap;
  logits[target] -= 1.0f - share * share;
}

void cross_entropy(const CrossEntropyRows& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    float* logits = a.logits + row * a.vocab;
    const std::int32_t target = a.targets[row];
    if (target == a.ignore_index) {
      a.losses[row] = 0.0;
      if (a.gradient) std::memset(logits, 0, static_cast<std::size_t>(a.vocab) * sizeof(float));
      continue;
    }
    if (a.softcap > 0) {
      capped_row(a, row);
      continue;
    }
    const float top = largest(logits, a.vocab);
    const float of_target = logits[target];
    const float total = sum(a.vocab, [&](Vec partial, std::int64_t i, auto lanes) {
      const Vec e = exponential(load(logits + i, lanes) - splat(top));
      store(logits + i, e, lanes);
      // Lanes that are not in use hold e^(0 - top), which must not be added.
      return partial + load(logits + i, lanes);
    });
    a.losses[row] = std::log(static_cast<double>(total)) + (static_cast<double>(top) - of_target);
    if (!a.gradient) continue;
    const Vec factor = splat(1.0f / total);
    for_vectors(a.vocab, [&](std::int64_t i, auto lanes) {
      store(logits + i, load(logits + i, lanes) * factor, lanes);
    });
    logits[target] -= 1.0f;
  }
}

// The same in two halves, operation by operation, with the exchange of parts between them.

/// The place of the row's target among the part's columns, or -1.
SHARDWRIGHT_INLINE std::int64_t target_column(const VocabularyRows& a, std::int64_t row) {
  const std::int64_t column = a.targets[row] - a.first_vocab;
  return column >= 0 && column < a.cols ? column : -1;
}

VocabularyPart part_of_row(const VocabularyRows& a, std::int64_t row) {
  float* logits = a.logits + row * a.stride;
  if (a.softcap > 0) {
    const Vec cap = splat(a.softcap), inverse = splat(1.0f / a.softcap);
    for_vectors(a.cols, [&](std::int64_t i, auto lanes) {
      store(logits + i, cap * hyperbolic_tangent(load(logits + i, lanes) * inverse), lanes);
    });
  }
  const float found = largest(logits, a.cols);
  const float top = found > kLowestMaximum ? found : kLowestMaximum;
  const float exponents = sum(a.cols, [&](Vec partial, std::int64_t i, auto lanes) {
    const Vec e = exponential(load(logits + i, lanes) - splat(top));
    if constexpr (std::is_same_v<decltype(lanes), First>) {
      float held[kWidth];
      store(held, e, lanes);
      return partial + load(held, lanes);  // nothing in lanes that are not in use
    } else {
      return partial + e;
    }
  });
  const std::int64_t column = target_column(a, row);
  return {top, exponents, column < 0 ? -0.0f : logits[column] + 0.0f};
}

VocabularyPart merged(const VocabularyParts& parts, std::int64_t row) {
  const VocabularyPart* part = parts.data + row;
  float top = part->maximum;
  for (std::int64_t p = 1; p < parts.count; ++p) {
    const float maximum = part[p * parts.stride].maximum;
    top = maximum > top ? maximum : top;
  }
  VocabularyPart all{top, 0.0f, -0.0f};
  for (std::int64_t p = 0; p < parts.count; ++p) {
    const VocabularyPart& one = part[p * parts.stride];
    all.exponents += one.exponents * exponential(splat(one.maximum - top))[0];
    all.target += one.target;
  }
  return all;
}

void gradient_of_row(const VocabularyRows& a, const VocabularyPart& all, std::int64_t row) {
  float* logits = a.logits + row * a.stride;
  const Vec factor = splat(1.0f / all.exponents), top = splat(all.maximum);
  const std::int64_t column = target_column(a, row);
  if (a.softcap > 0) {
    const Vec inverse = splat(1.0f / a.softcap);
    for_vectors(a.cols, [&](std::int64_t i, auto lanes) {
      const Vec capped = load(logits + i, lanes);
      const Vec share = capped * inverse;
      const Vec slope = splat(1.0f) - share * share;
      store(logits + i, exponential(capped - top) * factor * slope, lanes);
    });
    const float share = all.target / a.softcap;
    if (column >= 0) logits[column] -= 1.0f - share * share;
    return;
  }
  for_vectors(a.cols, [&](std::int64_t i, auto lanes) {
    store(logits + i, exponential(load(logits + i, lanes) - top) * factor, lanes);
  });
  if (column >= 0) logits[column] -= 1.0f;
}

void vocabulary_statistics(const VocabularyRows& a, VocabularyPart* parts, std::int64_t begin,
                           std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    parts[row] = a.targets[row] == a.ignore_index ? VocabularyPart{kLowestMaximum, 0.0f, -0.0f}
                                                  : part_of_row(a, row);
  }
}

void vocabulary_loss(const VocabularyRows& a, const VocabularyParts& parts, bool gradient,
                     double* losses, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    if (a.targets[row] == a.ignore_index) {
      if (losses != nullptr) losses[row] = 0.0;
      if (!gradient) continue;
      std::memset(a.logits + row * a.stride, 0, static_cast<std::size_t>(a.cols) * sizeof(float));
      continue;
    }
    const VocabularyPart all = merged(parts, row);
    if (losses != nullptr) {
      losses[row] = std::log(static_cast<double>(all.exponents)) +
                    (static_cast<double>(all.maximum) - all.target);
    }
    if (gradient) gradient_of_row(a, all, row);
  }
}

template <class T>
void add_rows_of(TypedKernels<T>& kernels) {
  kernels.norm_forward = &norm_forward<T>;
  kernels.norm_backward = &norm_backward<T>;
  kernels.rope = &rope<T>;
  kernels.activation_forward = &activation_forward<T>;
  kernels.activation_backward = &activation_backward<T>;
}

}  // namespace

void add_rows(Kernels& kernels) {
  add_rows_of(kernels.fp32);
  add_rows_of(kernels.bf16);
  kernels.cross_entropy = &cross_entropy;
  kernels.vocabulary_statistics = &vocabulary_statistics;
  kernels.vocabulary_loss = &vocabulary_loss;
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
