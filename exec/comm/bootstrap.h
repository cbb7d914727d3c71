// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a job meet on the host, as threads of one process or as processes anywhere.
//
// A communicator that moves data on devices (NCCL) needs little from the host: a first id, the few
// numbers that ranks exchange between steps, and the news that one of them has failed. The first
// failure that is told is the one that all hear of; whoever waits for a rank that cannot come any
// more gets Aborted.
//
// Read next: exec/comm/rendezvous.h (how processes find each other), exec/nccl/nccl_world.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "sim/core/base/error.h"

namespace shardwright::exec {

struct RankFailure {
  int rank = 0;
  ExitCode code = ExitCode::kFailed;
  std::string what;  // a sentence without the rank
};

/// Ranks that exchange with each other: `place` of `places`, the same `channel` on all of them and
/// on no other group.
struct BootstrapGroup {
  std::uint32_t channel = 0;
  int place = 0;
  int places = 1;
};

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  /// all[i] = what place i sent. All places call it in the same order with equal sizes;
  /// all = places * mine. Throws Aborted when a rank has failed.
  virtual void exchange(const BootstrapGroup& group, std::span<const std::byte> mine,
                        std::span<std::byte> all) = 0;
  /// Tells all ranks that this one cannot go on.
  virtual void fail(ExitCode code, const std::string& what) noexcept = 0;
  /// The first failure that was told, when there is one.
  virtual std::optional<RankFailure> failure() const = 0;
};

/// Runs body() as this rank. What it throws is told to the others and thrown again as the error of
/// the rank that failed first, "rank 2 of 4: ..."; a single rank's own exception passes as it is.
void run_rank(Bootstrap& bootstrap, const std::function<void()>& body);

}  // namespace shardwright::exec
