// SPDX-License-Identifier: Apache-2.0
// Who is there, asked when a rank does not come.
//
// MPI tells of processes that die (the launcher ends the job), not of one that hangs: it is
// stopped, swapped out, or waits for a disk that is gone; the others would wait for it for ever. So
// a rank that has waited for the deadline says to all others that it is there, as does every
// waiting rank that hears of it. Who does not answer is who everybody waits for, and the job ends
// with a sentence that names it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <vector>

namespace shardwright::exec {

class MpiHandshake {
 public:
  using Seconds = std::chrono::duration<double>;

  /// All ranks call it together. `timeout_s` is what a rank may wait for the others.
  explicit MpiHandshake(double timeout_s);
  /// All ranks of a job that ends well call it together.
  void end();

  /// Of a rank that has waited for so long: answers who asks. Throws Error when it is too long,
  /// naming the ranks that do not come. MPI may be called.
  void attend(Seconds waited);

  /// This rank has failed and waits for nobody any more. Any thread may say and ask it.
  void give_up() noexcept { gives_up_.store(true, std::memory_order_relaxed); }
  bool gives_up() const noexcept { return gives_up_.load(std::memory_order_relaxed); }

  /// How often a rank that waits should attend.
  static constexpr Seconds kInterval{0.1};

 private:
  void say_present();
  void hear();
  void ask_all();

  std::mutex mutex_;
  Seconds timeout_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::vector<bool> present_;
  bool said_ = false;
  std::atomic<bool> gives_up_{false};
};

}  // namespace shardwright::exec
