// SPDX-License-Identifier: Apache-2.0
// Who started this process: run itself, torchrun, mpirun, srun, or a person.
//
// Launchers tell processes their rank by environment variables. The first complete set wins:
// run's own, torchrun's, Open MPI's, PMI's (MPICH, Intel MPI), Slurm's. A set of which only a part
// is there is refused, because a rank that trains alone while the others wait is the worst way to
// fail. A set that names a single process is no launcher's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace shardwright::exec {

enum class Launcher : std::uint8_t { kNone, kRun, kTorchrun, kOpenMpi, kPmi, kSlurm };
/// "this process alone", "torchrun", "mpirun (Open MPI)", ...
const char* name_of(Launcher launcher);

struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  std::int64_t local_rank = 0;   // on this machine
  std::int64_t local_ranks = 1;  // 0: not told
  std::string address;           // of rank 0, torchrun only
  /// Where ranks may meet; 0: not told. torchrun keeps MASTER_PORT for itself when it says so, then
  /// this is the next one.
  std::int64_t port = 0;
};

/// The value of an environment variable, or none.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// Throws Error that lists what was found and what lacks when a set is half there or its numbers
/// make no sense.
LaunchEnvironment launch_environment(const Environment& environment);

// What to try where ranks on GPUs do not reach each other, as the end of a sentence.

inline constexpr const char* kHowConnectionsFail =
    "where all ranks are alive, their GPUs or nodes do not reach each other: NCCL_DEBUG=WARN says "
    "what NCCL met, NCCL_P2P_DISABLE=1 goes around GPUs that cannot read each other (nvidia-smi "
    "topo -p2p r), NCCL_SOCKET_IFNAME and NCCL_IB_HCA name the network";

}  // namespace shardwright::exec
