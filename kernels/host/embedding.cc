// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/embedding.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "kernels/host/simd/kernels.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/units.h"

namespace shardwright::kernels::host {
namespace {

void check_tokens(std::span<const std::int32_t> tokens, std::int64_t rows, std::int64_t first_row) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && (first_row != kWholeTable || tokens[i] < rows)) continue;
    throw Error(fmt::format("token {} of the batch is {}, expected 0 {}", i, tokens[i],
                            first_row == kWholeTable ? fmt::format("to {}", rows - 1) : "or more"));
  }
}

}  // namespace

template <class T>
void embedding_forward(Parallel& parallel, Matrix<const T> table,
                       std::span<const std::int32_t> tokens, Matrix<T> out, double scale,
                       Store mode, std::int64_t first_row) {
  SHARDWRIGHT_CHECK(out.rows == std::ssize(tokens) && out.cols == table.cols,
                    "embedding of {} tokens into [{}, {}]", tokens.size(), out.rows, out.cols);
  check_tokens(tokens, table.rows, first_row);
  const std::int64_t first = std::max<std::int64_t>(first_row, 0);
  const bool copies = scale == 1 && mode == Store::kOverwrite;
  const auto factor = static_cast<float>(scale);
  parallel.for_ranges(out.rows, ceil_div(32768, out.cols),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        for (std::int64_t i = begin; i < end; ++i) {
                          const std::int64_t row = tokens[static_cast<std::size_t>(i)] - first;
                          T* to = out.row(i);
                          if (row < 0 || row >= table.rows) {
                            if (mode == Store::kOverwrite) {
                              std::fill_n(to, out.cols, from_float<T>(-0.0f));
                            }
                            continue;
                          }
                          const T* from = table.row(row);
                          if (copies) {
                            std::memcpy(to, from, static_cast<std::size_t>(out.cols) * sizeof(T));
                            continue;
                          }
                          for (std::int64_t c = 0; c < out.cols; ++c) {
                            const float before = mode == Store::kAdd ? to_float(to[c]) : 0.0f;
                            to[c] = from_float<T>(factor * to_float(from[c]) + before);
                          }
                        }
                      });
}

template <class T, class G>
void embedding_backward(Parallel& parallel, std::span<const std::int32_t> tokens,
                        Matrix<const T> d_out, Matrix<G> d_table, Store mode,
                        std::span<std::int32_t> workspace, double scale, std::int64_t first_row) {
  const bool add = mode == Store::kAdd;
  const std::int64_t vocab = d_table.rows;
  const std::int64_t cols = d_table.cols;
  SHARDWRIGHT_CHECK(d_out.rows == std::ssize(tokens) && d_out.cols == cols &&
                        std::ssize(workspace) >= embedding_workspace_ints(d_out.rows, vocab),
                    "embedding gradient of {} tokens from [{}, {}]", tokens.size(), d_out.rows,
                    d_out.cols);
  check_tokens(tokens, vocab, first_row);
  const std::int64_t first = std::max<std::int64_t>(first_row, 0);
  const auto is_here = [&](std::int32_t token) { return token >= first && token < first + vocab; };
  // A counting sort groups the places by token and keeps their order.
  std::int32_t* places = workspace.data();
  std::int32_t* ends = places + tokens.size();  // ends[v]: behind the places of token v
  std::fill_n(ends, vocab + 1, 0);
  for (const std::int32_t token : tokens) {
    if (is_here(token)) ++ends[token - first + 1];
  }
  for (std::int64_t v = 0; v < vocab; ++v) ends[v + 1] += ends[v];
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (is_here(tokens[i])) places[ends[tokens[i] - first]++] = static_cast<std::int32_t>(i);
  }

  const Kernels& kernels = parallel.kernels();
  const auto factor = static_cast<float>(scale);
  constexpr std::int64_t kColumns = 4096;  // of one pass, so that the sum fits into scratch
  parallel.for_ranges(vocab, std::clamp<std::int64_t>(16384 / cols, 1, 64),
                      [&](std::int64_t begin, std::int64_t end, Scratch& scratch) {
                        float* total = scratch.floats(std::min(cols, kColumns));
                        for (std::int64_t v = begin; v < end; ++v) {
                          const std::int32_t from = v == 0 ? 0 : ends[v - 1];
                          if (from == ends[v] && add) continue;
                          for (std::int64_t col = 0; col < cols; col += kColumns) {
                            const std::int64_t count = std::min(kColumns, cols - col);
                            std::fill_n(total, count, 0.0f);
                            for (std::int32_t place = from; place < ends[v]; ++place) {
                              kernels.of<T>().accumulate(d_out.row(places[place]) + col, total,
                                                         count);
                            }
                            if (factor != 1.0f) {
                              for (std::int64_t i = 0; i < count; ++i) total[i] *= factor;
                            }
                            if (add) kernels.of<G>().accumulate(d_table.row(v) + col, total, count);
                            kernels.of<G>().narrow(total, d_table.row(v) + col, count);
                          }
                        }
                      });
}

template void embedding_forward<float>(Parallel&, Matrix<const float>,
                                       std::span<const std::int32_t>, Matrix<float>, double, Store,
                                       std::int64_t);
template void embedding_forward<BFloat16>(Parallel&, Matrix<const BFloat16>,
                                          std::span<const std::int32_t>, Matrix<BFloat16>, double,
                                          Store, std::int64_t);
#define SHARDWRIGHT_INSTANTIATE(T, G)                                              \
  template void embedding_backward<T, G>(Parallel&, std::span<const std::int32_t>, \
                                         Matrix<const T>, Matrix<G>, Store,        \
                                         std::span<std::int32_t>, double, std::int64_t);
SHARDWRIGHT_INSTANTIATE(float, float)
SHARDWRIGHT_INSTANTIATE(float, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host
