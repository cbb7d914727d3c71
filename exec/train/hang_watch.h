// SPDX-License-Identifier: Apache-2.0
// Notices that ranks that are threads of one process wait for ever.
//
// On processors an operation runs while its rank begins it, however long it takes. So where some
// rank is within a step and no rank has begun an operation for longer than a limit, one of them
// hangs, and the others stand in receives and collectives. One sentence names who waits for nobody
// else; the members of a collective that all stand in it may be meant together.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/executor.h"

namespace shardwright::exec {

class HangWatch {
 public:
  /// `on_hang` hears of a hang once, on a thread of its own.
  HangWatch(std::int64_t ranks, double limit_s, std::function<void(const std::string&)> on_hang);
  ~HangWatch();
  HangWatch(const HangWatch&) = delete;
  HangWatch& operator=(const HangWatch&) = delete;

  /// A rank that is watched while this lives.
  class Member {
   public:
    Member(HangWatch& watch, std::int64_t rank, const Executor& executor);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

   private:
    HangWatch& watch_;
    std::size_t rank_;
  };

 private:
  void watch();
  // Under the lock:
  std::int64_t begun() const;
  bool is_within_a_step() const;
  std::string told() const;

  double limit_s_;
  std::function<void(const std::string&)> on_hang_;
  std::mutex mutex_;
  std::condition_variable ends_changed_;
  bool ends_ = false;
  std::vector<const Executor*> executors_;  // by rank; null: not there
  std::thread thread_;
};

}  // namespace shardwright::exec
