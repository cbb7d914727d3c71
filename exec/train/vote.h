// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other at the end of every step: whether somebody wants to stop or to save,
// and how far the files of a checkpoint are. All decide by the same table, so all do the same.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/communicator.h"
#include "exec/train/checkpoint_writer.h"

namespace shardwright::exec {

struct Vote {
  std::uint8_t stop = 0;
  CheckpointWriter::Stage stage = CheckpointWriter::Stage::kIdle;
  std::uint8_t save = 0;
  std::uint8_t unused = 0;
  std::uint32_t crc = 0;
  std::int64_t bytes = 0;
  char error[240] = {};  // ends in zero
};
static_assert(sizeof(Vote) == 256);

/// What a rank wants after a step.
struct Wish {
  bool stop = false;
  bool save = false;
};

/// Everybody's votes by rank; the host waits.
std::vector<Vote> exchange_votes(Communicator& world, const Wish& wish,
                                 const CheckpointWriter::State& state);

}  // namespace shardwright::exec
