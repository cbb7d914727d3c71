// SPDX-License-Identifier: Apache-2.0
// Barriers and the operations of a warp. A lane may only read lanes of the mask; on a GPU, reading
// another gives anything.
#pragma once

#include <string>

#include "tests/support/cuda_on_cpu/emulation.h"

inline void __syncthreads() {
  cuda_on_cpu::barrier(false);
}
inline int __syncthreads_count(int predicate) {
  return cuda_on_cpu::barrier(predicate != 0);
}
inline int __syncthreads_or(int predicate) {
  return cuda_on_cpu::barrier(predicate != 0) > 0;
}
inline int __syncthreads_and(int predicate) {
  return cuda_on_cpu::barrier(predicate == 0) == 0;
}

namespace cuda_on_cpu {

template <class T>
struct ShuffleInput {
  T value;
  unsigned source;
};

template <class T>
T shuffle(std::uint32_t mask, T value, unsigned source) {
  const ShuffleInput<T> input{value, source};
  T result;
  warp_collective(
      mask,
      [](std::uint32_t lanes, const void* const* in, void* const* out) {
        for (unsigned l = 0; l < 32; ++l) {
          if (out[l] == nullptr) continue;
          const unsigned from = static_cast<const ShuffleInput<T>*>(in[l])->source;
          if ((lanes >> from & 1) == 0) {
            fail("lane " + std::to_string(l) + " shuffles from lane " + std::to_string(from) +
                 ", which its mask leaves out");
          }
          *static_cast<T*>(out[l]) = static_cast<const ShuffleInput<T>*>(in[from])->value;
        }
      },
      &input, &result);
  return result;
}

}  // namespace cuda_on_cpu

// The lane that is read, by the rules of PTX's shfl: outside the segment of `width` lanes, one
// keeps its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned segment = cuda_on_cpu::lane() & ~(static_cast<unsigned>(width) - 1);
  return cuda_on_cpu::shuffle(mask, value,
                              segment | (static_cast<unsigned>(source) & (unsigned(width) - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const unsigned self = cuda_on_cpu::lane();
  const unsigned source = self ^ static_cast<unsigned>(lane_mask);
  const unsigned end = (self & ~(static_cast<unsigned>(width) - 1)) + static_cast<unsigned>(width);
  return cuda_on_cpu::shuffle(mask, value, source < end ? source : self);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned self = cuda_on_cpu::lane();
  const unsigned end = (self & ~(static_cast<unsigned>(width) - 1)) + static_cast<unsigned>(width);
  return cuda_on_cpu::shuffle(mask, value, self + delta < end ? self + delta : self);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned self = cuda_on_cpu::lane();
  const unsigned begin = self & ~(static_cast<unsigned>(width) - 1);
  return cuda_on_cpu::shuffle(mask, value, self >= begin + delta ? self - delta : self);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const bool vote = predicate != 0;
  unsigned result = 0;
  cuda_on_cpu::warp_collective(
      mask,
      [](std::uint32_t, const void* const* in, void* const* out) {
        unsigned votes = 0;
        for (unsigned l = 0; l < 32; ++l) {
          if (in[l] != nullptr && *static_cast<const bool*>(in[l])) votes |= 1u << l;
        }
        for (unsigned l = 0; l < 32; ++l) {
          if (out[l] != nullptr) *static_cast<unsigned*>(out[l]) = votes;
        }
      },
      &vote, &result);
  return result;
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  cuda_on_cpu::warp_collective(
      mask, [](std::uint32_t, const void* const*, void* const*) {}, nullptr, nullptr);
}
