// SPDX-License-Identifier: Apache-2.0
// In which order sequences are trained on, and which rank gets which.
//
// The run counts the sequences it has consumed; that number, the seed and the data are the whole
// state. Every epoch visits every sequence once, in a random order of its own: a keyed permutation
// (a Feistel network over Philox, walked until it lands inside the range) gives the n-th sequence
// without a table, so a corpus of any size costs no memory and resuming no time.
//
// A step takes the next micro_batch * grad_accum * ranks sequences. Micro-batch m of rank r takes
// micro-batch m * ranks + r of them, so what a step sees depends only on its number of sequences.
#pragma once

#include <cstdint>

#include "exec/train/data/dataset.h"

namespace shardwright::exec {

class DataOrder {
 public:
  DataOrder(std::uint64_t seed, std::int64_t sequences);

  /// The sequence that stands at `position`, counted from 0 through all epochs.
  std::int64_t sequence_at(std::int64_t position) const;
  std::int64_t sequences() const { return sequences_; }

 private:
  std::uint64_t permute(std::uint64_t value, std::uint32_t epoch) const;

  std::uint64_t seed_;
  std::int64_t sequences_;
  unsigned half_bits_ = 1;
};

/// How a step's sequences are divided.
struct BatchShape {
  std::int64_t micro_batch = 1;
  std::int64_t micro_steps = 1;
  std::int64_t ranks = 1;
  std::int64_t sequences() const { return micro_batch * micro_steps * ranks; }
};

/// What `rank` trains on in the step that begins at `position`.
Batch training_batch(const Dataset& data, const DataOrder& order, const BatchShape& shape,
                     std::int64_t position, std::int64_t rank);

/// One micro-batch of evaluation: sequences [first, last) of the data in their own order, as many
/// as there is room for, then padding.
Batch evaluation_batch(const Dataset& data, const BatchShape& shape, std::int64_t seq_len,
                       std::int64_t first, std::int64_t last, std::int64_t rank);

}  // namespace shardwright::exec
