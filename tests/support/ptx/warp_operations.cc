// SPDX-License-Identifier: Apache-2.0
// What lanes of a warp do together: shuffles, votes, the barrier of a warp. The scheduler calls
// them once all lanes of the mask are there (machine.cc).
#include <array>

#include "tests/support/ptx/operations.h"

namespace ptx {
namespace {

enum class Shuffle { kUp, kDown, kButterfly, kIndex };

/// shfl.sync d|p, a, b, c, mask, by the PTX ISA's pseudo code: c holds the last lane that is read
/// (the first, of up) in bits 0 to 4 and what selects the segment in bits 8 to 12; a lane whose
/// source lies outside keeps its own value, and p is false.
template <Shuffle kMode>
void shuffle(Warp& warp, const Instruction& i, std::uint32_t mask) {
  const bool with_predicate = i.first_rows == 2;
  const std::uint32_t* operand = &i.row[with_predicate ? 2 : 1];
  std::array<std::uint64_t, 32> values;
  for (unsigned lane = 0; lane < 32; ++lane) values[lane] = warp.row(operand[0])[lane];
  for_lanes(mask, [&](unsigned lane) {
    const auto b = static_cast<int>(warp.row(operand[1])[lane] & 31);
    const auto c = static_cast<int>(warp.row(operand[2])[lane]);
    const int self = static_cast<int>(lane), segment = c >> 8 & 31, clamp = c & 31;
    const int last = (self & segment) | (clamp & ~segment), first = self & segment;
    int source = 0;
    bool inside = false;
    switch (kMode) {
      case Shuffle::kUp:
        source = self - b;
        inside = source >= last;
        break;
      case Shuffle::kDown:
        source = self + b;
        inside = source <= last;
        break;
      case Shuffle::kButterfly:
        source = self ^ b;
        inside = source <= last;
        break;
      case Shuffle::kIndex:
        source = first | (b & ~segment);
        inside = source <= last;
        break;
    }
    if (!inside) source = self;
    if ((mask >> source & 1) == 0) {
      warp.fail("lane " + std::to_string(lane) + " shuffles from lane " + std::to_string(source) +
                ", which the mask leaves out");
    }
    warp.row(i.row[0])[lane] = values[static_cast<std::size_t>(source)] & 0xffffffffu;
    if (with_predicate) warp.row(i.row[1])[lane] = inside ? 1 : 0;
  });
}

void any_vote(Warp& warp, const Instruction& i, std::uint32_t mask) {
  std::uint64_t found = 0;
  for_lanes(mask, [&](unsigned lane) { found |= warp.row(i.row[1])[lane]; });
  for_lanes(mask, [&](unsigned lane) { warp.row(i.row[0])[lane] = found; });
}

void only_meet(Warp&, const Instruction&, std::uint32_t) {}

}  // namespace

void add_warp_operations(Operations& table) {
  table["shfl.sync.up.b32"] = {shuffle<Shuffle::kUp>, Kind::kTogether};
  table["shfl.sync.down.b32"] = {shuffle<Shuffle::kDown>, Kind::kTogether};
  table["shfl.sync.bfly.b32"] = {shuffle<Shuffle::kButterfly>, Kind::kTogether};
  table["shfl.sync.idx.b32"] = {shuffle<Shuffle::kIndex>, Kind::kTogether};
  table["vote.sync.any.pred"] = {any_vote, Kind::kTogether};
  table["bar.warp.sync"] = {only_meet, Kind::kTogether};
}

}  // namespace ptx
