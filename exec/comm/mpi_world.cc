// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/mpi_world.h"

#include <fmt/core.h>
#include <mpi.h>

#include <cstdio>

#include "exec/comm/mpi_communicator.h"
#include "exec/comm/mpi_handshake.h"
#include "exec/comm/one_line.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {

MpiWorld::MpiWorld(bool streams_are_threads, double rank_timeout_s) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  serialized_ = provided < MPI_THREAD_MULTIPLE;
  if (streams_are_threads && provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    throw Error("the MPI library lets only one thread call it, expected streams to be inline",
                ExitCode::kMissingDevice);
  }
  handshake_ = std::make_unique<MpiHandshake>(rank_timeout_s);
}

MpiWorld::~MpiWorld() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  if (handshake_ != nullptr) handshake_->end();
  MPI_Finalize();
}

RankGroups MpiWorld::groups(int shard_ranks, Device& device) {
  if (shard_ranks < 1 || ranks_ % shard_ranks != 0) {
    throw Error(fmt::format("the shard group has {} ranks, expected a divisor of the {} ranks",
                            shard_ranks, ranks_));
  }
  const auto make = [&](int color) {
    return make_mpi_communicator(color, serialized_, device, *handshake_);
  };
  RankGroups groups;
  groups.world = make(0);
  groups.shard = make(rank_ / shard_ranks);
  groups.replicate = make(rank_ % shard_ranks);
  return groups;
}

void MpiWorld::run(const std::function<void()>& body) {
  const auto end_job = [&](const char* what, ExitCode code) {
    fmt::print(stderr, "rank {} of {}: {}\n", rank_, ranks_, one_line(what));
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  };
  try {
    body();
  } catch (const Error& error) {
    end_job(error.what(), error.code());
  } catch (const std::exception& error) {
    end_job(error.what(), ExitCode::kFailed);
  }
}

}  // namespace shardwright::exec
