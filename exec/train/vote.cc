// SPDX-License-Identifier: Apache-2.0
#include "exec/train/vote.h"

#include <algorithm>

namespace shardwright::exec {

std::vector<Vote> exchange_votes(Communicator& world, const Wish& wish,
                                 const CheckpointWriter::State& state) {
  Vote mine;
  mine.stop = wish.stop ? 1 : 0;
  mine.save = wish.save ? 1 : 0;
  mine.stage = state.stage;
  mine.crc = state.file.crc;
  mine.bytes = state.file.bytes;
  const std::size_t size = std::min(state.error.size(), sizeof mine.error - 1);
  std::copy_n(state.error.data(), size, mine.error);
  return exchange_all(world, mine);
}

}  // namespace shardwright::exec
