// SPDX-License-Identifier: Apache-2.0
#include "exec/train/host_room.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

struct RoomOfRank {
  std::uint64_t machine = 0;
  Bytes needed = 0;
  Bytes left = std::numeric_limits<Bytes>::max();
};

std::uint64_t this_machine() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return std::hash<std::string>()(name.data());
}

}  // namespace

void require_host_room(Communicator& world, Bytes mine, std::optional<Bytes> left) {
  RoomOfRank own{this_machine(), mine};
  if (left) own.left = *left;
  std::vector<RoomOfRank> all(static_cast<std::size_t>(world.size()));
  world.exchange(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  for (const RoomOfRank& first : all) {
    RoomOfRank sum{first.machine};
    for (const RoomOfRank& rank : all) {
      if (rank.machine != first.machine) continue;
      sum.needed += rank.needed;
      sum.left = std::min(sum.left, rank.left);
    }
    if (sum.needed <= sum.left) continue;
    throw Error(
        fmt::format("checkpoints copy the state of the ranks on one machine to its memory first, "
                    "{:.2f} GiB, of which {:.2f} are left; expected more of it, more machines, or "
                    "--save none",
                    static_cast<double>(sum.needed) / kGiB, static_cast<double>(sum.left) / kGiB),
        ExitCode::kInfeasible);
  }
}

}  // namespace shardwright::exec
