// SPDX-License-Identifier: Apache-2.0
// Notices that ranks that are threads of one process wait for ever.
//
// On processors an operation runs while its rank begins it, however long it takes. So where some
// rank is within a step and no rank has begun an operation for longer than a limit, one of them
// hangs, and the others stand in receives and collectives. One sentence names who waits for nobody
// else; the members of a collective that all stand in it may be meant together.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
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

// Notices a step that takes far longer than others did, or anything else on the device that does
// not end, and says where its rank stands.
//
// CUDA and NCCL have no time limit of their own: a rank that waits for a collective that another
// never began waits for ever. A thread of the rank counts the time of each step, and of what comes
// before the first one and between them (stages); beyond the limit it writes a flight record beside
// the metrics and tells of it, once. It counts only while it runs itself, so that a process that
// was stopped and goes on has lost nothing.

struct HangLimits {
  double factor = 20;         // times the median of the steps before
  double least_s = 60;        // never less
  double first_s = 1800;      // of the first steps, which have nothing to be compared with
  double collective_s = 120;  // of one collective that is tried before the first step
};

/// What takes time beside steps: "the all_gather of unit 3 in the rehearsal".
struct WatchedStage {
  std::string what;
  double limit_s = 0;
  std::string advice{};  // what to try where it hangs, as the end of a sentence; may be empty
};

class StepWatchdog {
 public:
  using Progress = std::function<StepProgress()>;
  /// Hears of a hang in one sentence, on the watchdog's thread.
  using OnHang = std::function<void(const std::string&)>;

  /// The flight record goes to `folder`/flight-rank-RANK.json.
  StepWatchdog(const HangLimits& limits, std::int64_t rank, std::filesystem::path folder,
               Progress progress, OnHang on_hang);
  ~StepWatchdog();
  StepWatchdog(const StepWatchdog&) = delete;
  StepWatchdog& operator=(const StepWatchdog&) = delete;

  void begin(std::int64_t step);
  /// From now on this is what is watched; another begin, or end_stage(), ends it.
  void begin(WatchedStage stage);
  void end();
  void end_stage();
  /// Of a step that begins now.
  double limit_s() const;

 private:
  void watch();
  void tell(std::int64_t step, const WatchedStage& stage, double waited_s, double median_s);
  double step_limit_s() const;  // under the lock
  bool watches() const { return turn_ >= 0; }
  double median_s() const;  // 0: too few steps; under the lock

  HangLimits limits_;
  std::int64_t rank_;
  std::filesystem::path folder_;
  Progress progress_;
  OnHang on_hang_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false, told_ = false;
  std::int64_t turns_ = 0, turn_ = -1;  // of steps and stages; -1: nothing is watched
  std::int64_t step_ = -1;              // -1: a stage
  WatchedStage stage_;
  double waited_s_ = 0;
  std::chrono::steady_clock::time_point begun_{};
  std::vector<double> steps_s_;  // the last ones
  std::size_t next_ = 0;
  std::thread thread_;
};

}  // namespace shardwright::exec
