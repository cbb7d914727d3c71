// SPDX-License-Identifier: Apache-2.0
// The collectives of one rank of an MPI group (exec/comm/mpi_world.h says how they run).
#pragma once

#include <memory>

#include "exec/comm/mpi_handshake.h"
#include "exec/communicator.h"

namespace shardwright::exec {

/// A communicator of all ranks that call with the same color; all ranks of the job call together.
/// `serialized`: the MPI calls of all threads of a rank take turns. `handshake` outlives it.
std::unique_ptr<Communicator> make_mpi_communicator(int color, bool serialized, Device& device,
                                                    MpiHandshake& handshake);

}  // namespace shardwright::exec
