// SPDX-License-Identifier: Apache-2.0
#include "exec/train/resume.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>
#include <string_view>

#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

/// kDamaged is about the checkpoint. kUnread is about the machine, and another checkpoint would not
/// be read either: the run ends, or it would go on from an older one for want of memory.
enum class Verdict : std::int64_t { kDamaged, kWhole, kUnread };

/// What a rank says of a candidate.
struct Finding {
  std::int64_t step = -1;               // of the manifest; -1: it cannot be opened
  Verdict verdict = Verdict::kDamaged;  // of this rank's share of the files
  char error[240] = {};                 // ends in zero

  void say(std::string_view text) {
    std::copy_n(text.data(), std::min(text.size(), sizeof error - 1), error);
  }
};
static_assert(sizeof(Finding) == 256);

Finding look_at(const std::filesystem::path& path, const Communicator& world,
                std::unique_ptr<Checkpoint>& opened) {
  Finding mine;
  try {
    opened = std::make_unique<Checkpoint>(path);
    mine.step = opened->manifest().step;
    opened->verify(world.rank(), world.size());
    mine.verdict = Verdict::kWhole;
  } catch (const std::bad_alloc&) {
    mine.verdict = Verdict::kUnread;
    mine.say("this machine ran out of memory");
  } catch (const std::exception& error) {
    mine.say(error.what());
  }
  return mine;
}

/// Ranks that see different folders would go on from different steps.
void require_same_candidates(Communicator& world,
                             const std::vector<std::filesystem::path>& candidates) {
  const std::vector<std::int64_t> counts =
      exchange_all(world, static_cast<std::int64_t>(candidates.size()));
  for (std::size_t rank = 1; rank < counts.size(); ++rank) {
    if (counts[rank] == counts.front()) continue;
    throw Error(
        fmt::format("rank 0 sees {} checkpoints to resume from, rank {} sees {}; expected "
                    "a folder that all ranks share",
                    counts.front(), rank, counts[rank]));
  }
}

}  // namespace

std::unique_ptr<Checkpoint> choose_checkpoint(Communicator& world,
                                              const std::vector<std::filesystem::path>& candidates,
                                              const std::function<void(const std::string&)>& note) {
  require_same_candidates(world, candidates);
  if (candidates.empty()) return nullptr;
  std::string last;
  for (const std::filesystem::path& path : candidates) {
    std::unique_ptr<Checkpoint> opened;
    const std::vector<Finding> all = exchange_all(world, look_at(path, world, opened));
    const auto found = [&](Verdict verdict) {
      return std::find_if(all.begin(), all.end(),
                          [=](const Finding& one) { return one.verdict == verdict; });
    };
    if (const auto unread = found(Verdict::kUnread); unread != all.end()) {
      throw Error(fmt::format("{}: rank {} could not read it: {}", path.string(),
                              unread - all.begin(), unread->error),
                  ExitCode::kFailed);
    }
    const auto bad = found(Verdict::kDamaged);
    if (bad == all.end()) {
      const auto other = std::find_if(
          all.begin(), all.end(), [&](const Finding& one) { return one.step != all.front().step; });
      if (other == all.end()) return opened;
      throw Error(
          fmt::format("{}: step {} on rank 0, step {} on rank {}; expected a folder that "
                      "all ranks share",
                      path.string(), all.front().step, other->step, other - all.begin()));
    }
    last = bad->error;
    if (world.rank() == 0 && candidates.size() > 1)
      note(fmt::format("{}; the one before it is tried", last));
  }
  if (candidates.size() == 1) throw Error(last);
  throw Error(fmt::format("{}: none of {} checkpoints is whole, expected one to resume from",
                          candidates.front().parent_path().string(), candidates.size()));
}

}  // namespace shardwright::exec
