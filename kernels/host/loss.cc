// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/loss.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/host/simd/kernels.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::kernels::host {
namespace {

void check_targets(std::span<const std::int32_t> targets, std::int64_t vocab) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] != kIgnoreTarget && (targets[i] < 0 || targets[i] >= vocab)) {
      throw Error(fmt::format("target {} of the batch is {}, expected 0 to {} or {}", i, targets[i],
                              vocab - 1, kIgnoreTarget));
    }
  }
}

VocabularyRows rows_of_part(Matrix<float> logits, std::span<const std::int32_t> targets,
                            std::int64_t first_vocab, double softcap) {
  SHARDWRIGHT_CHECK(logits.rows == std::ssize(targets), "loss of [{}, {}] on {} targets",
                    logits.rows, logits.cols, targets.size());
  return {.logits = logits.data,
          .stride = logits.stride,
          .cols = logits.cols,
          .targets = targets.data(),
          .ignore_index = kIgnoreTarget,
          .first_vocab = first_vocab,
          .softcap = static_cast<float>(softcap)};
}

std::int64_t rows_of_task(std::int64_t cols) {
  return std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(1, cols));
}

void check_some_part_has(std::span<const std::int32_t> targets, const VocabularyParts& parts) {
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] == kIgnoreTarget) continue;
    float target = -0.0f;
    for (std::int64_t p = 0; p < parts.count; ++p) {
      target += parts.data[p * parts.stride + static_cast<std::int64_t>(row)].target;
    }
    if (target == 0 && std::signbit(target)) {
      throw Error(
          fmt::format("target {} of the batch is {}, expected a token of the vocabulary or "
                      "{}",
                      row, targets[row], kIgnoreTarget));
    }
  }
}

}  // namespace

LmLoss cross_entropy(Parallel& parallel, Matrix<float> logits,
                     std::span<const std::int32_t> targets, bool gradient, std::span<double> losses,
                     double softcap) {
  SHARDWRIGHT_CHECK(logits.rows == std::ssize(targets) && logits.rows <= std::ssize(losses) &&
                        logits.stride == logits.cols,
                    "loss of [{}, {}] on {} targets", logits.rows, logits.cols, targets.size());
  check_targets(targets, logits.cols);
  const Kernels& kernels = parallel.kernels();
  const CrossEntropyRows args{.logits = logits.data,
                              .targets = targets.data(),
                              .ignore_index = kIgnoreTarget,
                              .vocab = logits.cols,
                              .gradient = gradient,
                              .softcap = static_cast<float>(softcap),
                              .losses = losses.data()};
  parallel.for_ranges(logits.rows, std::max<std::int64_t>(1, 8192 / logits.cols),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        kernels.cross_entropy(args, begin, end);
                      });
  return sum_of_losses(losses, targets);
}

LmLoss sum_of_losses(std::span<const double> losses, std::span<const std::int32_t> targets) {
  LmLoss loss;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == kIgnoreTarget) continue;
    loss.sum += losses[i];
    ++loss.count;
  }
  return loss;
}

void vocabulary_statistics(Parallel& parallel, Matrix<float> logits,
                           std::span<const std::int32_t> targets, std::int64_t first_vocab,
                           std::span<VocabularyPart> parts, double softcap) {
  const VocabularyRows rows = rows_of_part(logits, targets, first_vocab, softcap);
  SHARDWRIGHT_CHECK(logits.rows <= std::ssize(parts), "{} rows in room for {}", logits.rows,
                    parts.size());
  const Kernels& kernels = parallel.kernels();
  parallel.for_ranges(logits.rows, rows_of_task(logits.cols),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        kernels.vocabulary_statistics(rows, parts.data(), begin, end);
                      });
}

LmLoss vocabulary_loss(Parallel& parallel, Matrix<float> logits,
                       std::span<const std::int32_t> targets, std::int64_t first_vocab,
                       const VocabularyParts& parts, bool gradient, std::span<double> losses,
                       double softcap) {
  const VocabularyRows rows = rows_of_part(logits, targets, first_vocab, softcap);
  SHARDWRIGHT_CHECK((losses.empty() || logits.rows <= std::ssize(losses)) && parts.count > 0 &&
                        parts.stride >= logits.rows,
                    "{} losses of {} rows in {} parts", losses.size(), logits.rows, parts.count);
  check_some_part_has(targets, parts);
  double* each = losses.empty() ? nullptr : losses.data();
  const Kernels& kernels = parallel.kernels();
  parallel.for_ranges(logits.rows, rows_of_task(gradient ? logits.cols : 1),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        kernels.vocabulary_loss(rows, parts, gradient, each, begin, end);
                      });
  return each == nullptr ? LmLoss{} : sum_of_losses(losses, targets);
}

}  // namespace shardwright::kernels::host
