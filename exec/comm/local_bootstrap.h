// SPDX-License-Identifier: Apache-2.0
// A rendezvous of ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "exec/comm/bootstrap.h"

namespace shardwright::exec {

class LocalBootstrapRoom {
 public:
  explicit LocalBootstrapRoom(int ranks) : ranks_(ranks) {}
  LocalBootstrapRoom(const LocalBootstrapRoom&) = delete;
  LocalBootstrapRoom& operator=(const LocalBootstrapRoom&) = delete;

  /// Runs body(rendezvous) on a thread for every rank and waits for all. Throws the error of the
  /// rank that failed first.
  void run(const std::function<void(Bootstrap& bootstrap)>& body);

 private:
  class Seat;
  struct Gathering {
    std::vector<std::vector<std::byte>> parts;
    int arrived = 0;
    int taken = 0;
  };

  int ranks_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Gathering> gatherings_;  // channel, sequence
  std::optional<RankFailure> failure_;
};

}  // namespace shardwright::exec
