// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/mpi_handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <thread>

#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

using namespace std::chrono_literals;

constexpr MpiHandshake::Seconds kLeastGrace = 1s, kMostGrace = 10s, kTelling = 1s;

std::string absence(const std::vector<int>& absent, double timeout_s) {
  if (absent.empty()) {
    return fmt::format(
        "all ranks wait for each other for {:g} s (--rank-timeout): a message is lost, or ranks do "
        "not do the same",
        timeout_s);
  }
  return fmt::format(
      "rank{} {} {} not come within {:g} s (--rank-timeout): stopped, waiting for a disk, or too "
      "slow",
      absent.size() == 1 ? "" : "s", fmt::join(absent, ", "), absent.size() == 1 ? "has" : "have",
      timeout_s);
}

}  // namespace

MpiHandshake::MpiHandshake(double timeout_s) : timeout_(timeout_s) {
  MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  int ranks = 1;
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &ranks);
  present_.resize(static_cast<std::size_t>(ranks));
  present_[static_cast<std::size_t>(rank_)] = true;
}

void MpiHandshake::end() {
  MPI_Comm_free(&comm_);
}

void MpiHandshake::say_present() {
  if (said_) return;
  said_ = true;
  // An empty message is sent at once, so its request is freed and nobody waits for a hung rank.
  // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker)
  for (int rank = 0; rank < static_cast<int>(present_.size()); ++rank) {
    if (rank == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(nullptr, 0, MPI_BYTE, rank, 0, comm_, &request);
    MPI_Request_free(&request);
  }
}

void MpiHandshake::hear() {
  while (true) {
    int found = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, comm_, &found, &status) != MPI_SUCCESS || found == 0) return;
    MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, 0, comm_, MPI_STATUS_IGNORE);
    present_[static_cast<std::size_t>(status.MPI_SOURCE)] = true;
    say_present();
  }
}

void MpiHandshake::ask_all() {
  say_present();
  const auto grace = std::clamp(timeout_ / 4, kLeastGrace, kMostGrace);
  const auto until = std::chrono::steady_clock::now() + grace;
  std::vector<int> absent;
  do {
    std::this_thread::sleep_for(10ms);
    hear();
    absent.clear();
    for (std::size_t rank = 0; rank < present_.size(); ++rank) {
      if (!present_[rank]) absent.push_back(static_cast<int>(rank));
    }
  } while (!absent.empty() && std::chrono::steady_clock::now() < until);
  // One rank tells; the others only where it does not end the job.
  const auto first = std::find(present_.begin(), present_.end(), true) - present_.begin();
  if (rank_ != first) std::this_thread::sleep_for(kTelling);
  throw Error(absence(absent, timeout_.count()), ExitCode::kFailed);
}

void MpiHandshake::attend(Seconds waited) {
  const std::lock_guard lock(mutex_);
  hear();
  if (waited > timeout_) ask_all();
}

}  // namespace shardwright::exec
