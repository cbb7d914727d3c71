// SPDX-License-Identifier: Apache-2.0
// Functions that CUDA offers inside kernels: arithmetic with a stated rounding, bits, cached loads,
// atomics. Fast approximations (__expf, __fdividef) are computed well here; tests that compare
// with a GPU's results need a tolerance.
#pragma once

#include <bit>
#include <cmath>

using std::isfinite;
using std::isinf;
using std::isnan;

// Rounded to nearest, and never contracted into a fused multiply-add.
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fsqrt_rn(float a) {
  return std::sqrt(a);
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}

namespace cuda_on_cpu {

/// Functions of CUDA's mathematical library whose last bits differ from those of C++'s, which stand
/// for them unless a test puts CUDA's own here (tests/support/ptx).
struct MathFunctions {
  float (*expf)(float) = [](float a) { return std::exp(a); };
  float (*exp2f)(float) = [](float a) { return std::exp2(a); };
  float (*logf)(float) = [](float a) { return std::log(a); };
  float (*tanhf)(float) = [](float a) { return std::tanh(a); };
  float (*erfcf)(float) = [](float a) { return std::erfc(a); };
  double (*log)(double) = [](double a) { return std::log(a); };
};
inline MathFunctions math_functions;

inline float expf(float a) {
  return math_functions.expf(a);
}
inline float exp2f(float a) {
  return math_functions.exp2f(a);
}
inline float logf(float a) {
  return math_functions.logf(a);
}
inline float tanhf(float a) {
  return math_functions.tanhf(a);
}
inline float erfcf(float a) {
  return math_functions.erfcf(a);
}
inline double log(double a) {
  return math_functions.log(a);
}

}  // namespace cuda_on_cpu

// Kernels find these before the C library's.
namespace shardwright::kernels::cuda {
using cuda_on_cpu::erfcf;
using cuda_on_cpu::exp2f;
using cuda_on_cpu::expf;
using cuda_on_cpu::log;
using cuda_on_cpu::logf;
using cuda_on_cpu::tanhf;
}  // namespace shardwright::kernels::cuda

// As CUDA has it: the approximate ex2 of a product that is rounded.
inline float __expf(float a) {
  return std::exp2(a * 1.4426950408889634f);
}
inline float __fdividef(float a, float b) {
  return a / b;
}

inline unsigned __float_as_uint(float a) {
  return std::bit_cast<unsigned>(a);
}
inline float __uint_as_float(unsigned a) {
  return std::bit_cast<float>(a);
}
inline float __int_as_float(int a) {
  return std::bit_cast<float>(a);
}
inline double __longlong_as_double(long long a) {
  return std::bit_cast<double>(a);
}

// Kernels of other streams may run on other threads of the host.
template <class T, class Next>
T cuda_on_cpu_update(T* at, Next next) {
  T old;
  __atomic_load(at, &old, __ATOMIC_RELAXED);
  T desired = next(old);
  while (!__atomic_compare_exchange(at, &old, &desired, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    desired = next(old);
  }
  return old;
}
template <class T>
inline T atomicAdd(T* at, T value) {
  return cuda_on_cpu_update(at, [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
inline T atomicMax(T* at, T value) {
  return cuda_on_cpu_update(at, [=](T old) { return old < value ? value : old; });
}

// CUDA has them for all arithmetic types at global scope.
#define CUDA_ON_CPU_MIN_MAX(T) \
  inline T min(T a, T b) {     \
    return b < a ? b : a;      \
  }                            \
  inline T max(T a, T b) {     \
    return a < b ? b : a;      \
  }
CUDA_ON_CPU_MIN_MAX(int)
CUDA_ON_CPU_MIN_MAX(unsigned)
CUDA_ON_CPU_MIN_MAX(long)
CUDA_ON_CPU_MIN_MAX(unsigned long)
CUDA_ON_CPU_MIN_MAX(long long)
CUDA_ON_CPU_MIN_MAX(unsigned long long)
#undef CUDA_ON_CPU_MIN_MAX
// A NaN loses, as in IEEE minNum.
inline float min(float a, float b) {
  return std::fmin(a, b);
}
inline float max(float a, float b) {
  return std::fmax(a, b);
}
