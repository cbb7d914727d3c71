// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/rope.h"

#include <fmt/core.h>

#include "kernels/host/simd/kernels.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/units.h"

namespace shardwright::kernels::host {

template <class T>
void rope(Parallel& parallel, const Rows& rows, const RopeView& table,
          const std::int32_t* positions, std::int64_t seq, RopeDirection direction, T* x) {
  SHARDWRIGHT_CHECK(2 * table.pairs <= rows.cols, "rope of {} pairs on heads of {}", table.pairs,
                    rows.cols);
  for (std::int64_t t = 0; positions != nullptr && t < rows.tokens; ++t) {
    if (positions[t] < 0 || positions[t] >= table.positions) {
      throw Error(fmt::format("token {} has position {}, expected 0 to {}", t, positions[t],
                              table.positions - 1));
    }
  }
  if (positions == nullptr && seq > table.positions) {
    throw Error(fmt::format("sequences of {} tokens exceed the {} positions of the model", seq,
                            table.positions));
  }
  const RopeRows<T> args{.x = x,
                         .cosine = table.cosine,
                         .sine = table.sine,
                         .positions = positions,
                         .seq = seq,
                         .pairs = table.pairs,
                         .direction = direction == RopeDirection::kForward ? 1.0f : -1.0f,
                         .rows = rows};
  const auto& kernels = parallel.kernels().of<T>();
  parallel.for_ranges(
      rows.count(), ceil_div(16384, rows.cols),
      [&](std::int64_t begin, std::int64_t end, Scratch&) { kernels.rope(args, begin, end); });
}

template void rope<float>(Parallel&, const Rows&, const RopeView&, const std::int32_t*,
                          std::int64_t, RopeDirection, float*);
template void rope<BFloat16>(Parallel&, const Rows&, const RopeView&, const std::int32_t*,
                             std::int64_t, RopeDirection, BFloat16*);

}  // namespace shardwright::kernels::host
