// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/mpi_world.h"

#include <fmt/core.h>
#include <mpi.h>

#include <cstdio>

#include "exec/comm/mpi_communicator.h"
#include "exec/comm/mpi_handshake.h"
#include "exec/comm/one_line.h"
#include "exec/comm/rank_groups.h"
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

RankGroups MpiWorld::groups(const RankMesh& mesh, Device& device, const OnWorld& on_world) {
  return make_groups(mesh, rank_, on_world,
                     [&](CommGroup, const std::vector<std::int64_t>& members, int) {
                       return make_mpi_communicator(static_cast<int>(members.front()), serialized_,
                                                    device, *handshake_);
                     });
}

RankGroups MpiWorld::groups(int shard_ranks, Device& device) {
  return groups(data_parallel_mesh(ranks_, shard_ranks), device);
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
