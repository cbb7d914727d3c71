// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/data_order.h"

#include "kernels/random.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {

namespace {

constexpr std::uint32_t kRounds = 8;

}  // namespace

DataOrder::DataOrder(std::uint64_t seed, std::int64_t sequences)
    : seed_(seed), sequences_(sequences) {
  SHARDWRIGHT_CHECK(sequences > 0 && sequences <= (std::int64_t{1} << 60), "{} sequences",
                    sequences);
  while ((std::uint64_t{1} << (2 * half_bits_)) < static_cast<std::uint64_t>(sequences)) {
    ++half_bits_;
  }
}

std::uint64_t DataOrder::permute(std::uint64_t value, std::uint32_t epoch) const {
  const kernels::RandomStream random{seed_, kernels::RandomSite::kShuffle, epoch};
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_, right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t mixed = left ^ (random.word64(round << 32 | right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

std::int64_t DataOrder::sequence_at(std::int64_t position) const {
  const auto epoch = static_cast<std::uint32_t>(position / sequences_);
  auto value = static_cast<std::uint64_t>(position % sequences_);
  do {
    value = permute(value, epoch);
  } while (value >= static_cast<std::uint64_t>(sequences_));
  return static_cast<std::int64_t>(value);
}

Batch training_batch(const Dataset& data, const DataOrder& order, const BatchShape& shape,
                     std::int64_t position, std::int64_t rank) {
  Batch batch;
  for (std::int64_t m = 0; m < shape.micro_steps; ++m) {
    const std::int64_t first = position + (m * shape.ranks + rank) * shape.micro_batch;
    for (std::int64_t i = 0; i < shape.micro_batch; ++i) {
      data.append(order.sequence_at(first + i), batch);
    }
  }
  return batch;
}

Batch evaluation_batch(const Dataset& data, const BatchShape& shape, std::int64_t seq_len,
                       std::int64_t first, std::int64_t last, std::int64_t rank) {
  Batch batch;
  for (std::int64_t i = 0; i < shape.micro_batch; ++i) {
    const std::int64_t sequence = first + rank * shape.micro_batch + i;
    if (sequence < last) {
      data.append(sequence, batch);
    } else {
      append_padding(seq_len, batch);
    }
  }
  return batch;
}

}  // namespace shardwright::exec
