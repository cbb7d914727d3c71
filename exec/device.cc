// SPDX-License-Identifier: Apache-2.0
#include "exec/device.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/arguments.h"
#include "kernels/exact_sum.h"

namespace shardwright::exec {

static_assert(kExactSumWords == kernels::ExactSum::kWords);

StepTotals total(const StepRecords& records, const ClipOptions& options) {
  StepTotals totals;
  std::array<std::int64_t, kExactSumWords> words{};
  for (std::int64_t rank = 0; rank < records.world_ranks; ++rank) {
    for (std::size_t i = 0; i < words.size(); ++i) words[i] += records.squares(rank)[i];
  }
  for (std::int64_t m = 0; m < records.micro_steps; ++m) {
    for (std::int64_t rank = 0; rank < records.world_ranks; ++rank) {
      totals.loss += records.loss(rank, m).loss;
      totals.tokens += records.loss(rank, m).tokens;
    }
  }
  const double norm = std::sqrt(kernels::ExactSum::from_words(words).value());
  const double divisor = totals.tokens > 0 ? static_cast<double>(totals.tokens) : 1.0;
  totals.gradient_norm = norm / divisor;
  totals.scale = kernels::clip_factor(totals.gradient_norm, options.max_norm) / divisor;
  const bool too_large = options.skip_above > 0 && totals.gradient_norm > options.skip_above;
  if (!std::isfinite(totals.gradient_norm) || !std::isfinite(totals.loss) || too_large) {
    totals.scale = std::numeric_limits<double>::quiet_NaN();
  }
  return totals;
}

void Failure::keep(std::exception_ptr error, std::int64_t operation) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  error_ = std::move(error);
  operation_ = operation;
  failed_.store(true, std::memory_order_release);
}

std::int64_t Failure::operation() const {
  const std::lock_guard lock(mutex_);
  return operation_;
}

void Failure::rethrow() const {
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  std::rethrow_exception(error_);
}

}  // namespace shardwright::exec
