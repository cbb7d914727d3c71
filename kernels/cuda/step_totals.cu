// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/exact_sum.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr int kSumWords = static_cast<int>(ExactSum::kWords);
constexpr int kFirstExponent = -320;

/// 2^exponent for normal results.
__device__ __forceinline__ double power_of_two(int exponent) {
  return __longlong_as_double(static_cast<long long>(exponent + 1023) << 52);
}

__global__ void __launch_bounds__(kThreads)
    step_totals_kernel(StepRecordsView r, double max_norm, double skip_above,
                       StepTotalsView* totals) {
  __shared__ std::int64_t words[kSumWords];
  __shared__ double losses[kThreads];
  __shared__ std::int64_t tokens[kThreads];
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < kSumWords) {
    std::int64_t sum = 0;
    for (std::int64_t rank = 0; rank < r.world_ranks; ++rank) {
      sum += r.data[rank * r.words + thread];
    }
    words[thread] = sum;
  }
  // Micro-batch m of rank k is number m * world_ranks + k; one thread adds them up in order, all
  // fetch.
  double loss = 0.0;
  std::int64_t counted = 0;
  const std::int64_t count = r.world_ranks * r.micro_steps;
  for (std::int64_t begin = 0; begin < count; begin += kThreads) {
    __syncthreads();
    const std::int64_t i = begin + thread;
    if (i < count) {
      const std::int64_t* pair =
          r.data + i % r.world_ranks * r.words + kSumWords + 2 * (i / r.world_ranks);
      losses[thread] = __longlong_as_double(static_cast<long long>(pair[0]));
      tokens[thread] = pair[1];
    }
    __syncthreads();
    if (thread == 0) {
      for (std::int64_t j = 0; j < kThreads && begin + j < count; ++j) {
        loss += losses[j];
        counted += tokens[j];
      }
    }
  }
  __syncthreads();
  if (thread != 0) return;
  // ExactSum::from_words(...).value(): carry, then the digits from the lowest on.
  std::int64_t carried = 0;
  double squares = 0.0;
  for (int digit = 0; digit < kSumWords - 1; ++digit) {
    const std::int64_t word = words[digit] + carried;
    carried = word >> 32;
    squares = __dadd_rn(squares, __dmul_rn(static_cast<double>(word & 0xffffffff),
                                           power_of_two(kFirstExponent + 32 * digit)));
  }
  const double nan = __longlong_as_double(0x7ff8000000000000LL);
  if (words[kSumWords - 1] != 0) squares = nan;
  const double divisor = counted > 0 ? static_cast<double>(counted) : 1.0;
  const double norm = sqrt(squares) / divisor;
  double clip = 1.0;
  if (max_norm > 0) {
    const double factor = max_norm / (norm + 1e-6);
    if (factor < 1.0) clip = factor;
  }
  const bool too_large = skip_above > 0 && norm > skip_above;
  const bool usable = isfinite(norm) && isfinite(loss) && !too_large;
  *totals = {loss, counted, norm, usable ? clip / divisor : nan};
}

}  // namespace

void step_totals(cudaStream_t stream, const StepRecordsView& records, double max_norm,
                 double skip_above, StepTotalsView* totals) {
  launch(step_totals_kernel, {1, kThreads}, stream, records, max_norm, skip_above, totals);
}

}  // namespace shardwright::kernels::cuda
