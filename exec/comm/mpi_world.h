// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes started by mpirun or srun, on one machine or many.
//
// Collectives run on the stream they belong to, as non-blocking MPI calls that are polled, so that
// the streams of a rank do not hold each other up. Where the library serialises threads, calls take
// turns. Every group has MPI communicators of its own, so streams never mix their messages.
//
// Data must be in host memory (the host device). Sums are made in the order of ranks, like those of
// local ranks, to the same bits. An error on one rank is printed with its rank and ends the job;
// when a process dies, the launcher ends the others; when one hangs, MpiHandshake (mpi_world.cc)
// does.
#pragma once

#include <functional>
#include <memory>

#include "exec/communicator.h"
#include "sim/core/layout.h"

namespace shardwright::exec {

class MpiHandshake;

class MpiWorld {
 public:
  /// Starts MPI; at most once in a process. Throws Error when the library's support for threads
  /// does not suffice for streams that are threads. After `rank_timeout_s` without a rank that the
  /// others wait for the job ends.
  MpiWorld(bool streams_are_threads, double rank_timeout_s);
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  /// The communicators of this rank; all ranks call it together.
  RankGroups groups(const RankMesh& mesh, Device& device, const OnWorld& on_world = {});

  /// Calls body(); an exception is printed and ends the whole job with the exit code it deserves.
  void run(const std::function<void()>& body);

 private:
  std::unique_ptr<MpiHandshake> handshake_;
  int rank_ = 0;
  int ranks_ = 1;
  bool serialized_ = false;
};

}  // namespace shardwright::exec
