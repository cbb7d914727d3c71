// SPDX-License-Identifier: Apache-2.0
// How the processes of a run find each other: what the launcher tells, or what the user says.
//
//   torchrun        MASTER_ADDR and MASTER_PORT (the next port where torchrun uses that one itself)
//   srun            the first host of the step, and a port made from the job's number
//   mpirun          on one machine a file in a folder of the user, named after the launcher
//   --rendezvous    tcp://HOST:PORT or file:///PATH; with a file on a shared file system rank 0
//                   takes a free port and writes there where it listens, and a secret
//
// Ranks prove to each other that they know a key: the secret of that file, which only its owner can
// read, and SHARDWRIGHT_MEETING_KEY where that is set for all ranks. Where there is neither, the
// launcher's name for the run has to do, which others may guess: is_secret() tells.
//
// A file that an earlier run left behind does no harm: nobody answers where it points to, or
// somebody who belongs to another run, and ranks look again.
#pragma once

#include <memory>
#include <string>

#include "exec/comm/bootstrap.h"
#include "exec/comm/launch_environment.h"

namespace shardwright::exec {

struct Rendezvous {
  std::string file;  // empty: host and port
  std::string host;
  int port = 0;
  std::string run;              // tells runs apart; may be empty
  std::string key;              // SHARDWRIGHT_MEETING_KEY; may be empty
  bool on_one_machine = false;  // all ranks

  /// Whether ranks prove who they are with something that strangers cannot guess.
  bool is_secret() const { return !key.empty() || !file.empty(); }

  /// "tcp://n0:29501" or "file:///shared/meet".
  std::string name() const;
  BootstrapPlace place() const;
};

/// `wish` is "auto" or what --rendezvous accepts. Throws Error that says what the launcher does not
/// tell, or that a key is too short.
Rendezvous choose_rendezvous(const std::string& wish, const LaunchEnvironment& launch,
                             const Environment& environment);

/// The first host of a list of Slurm's: "n[007-009,12],m1" is n007.
std::string first_slurm_host(const std::string& list);

/// All ranks with the same fingerprint at the same place.
std::unique_ptr<Bootstrap> meet(const Rendezvous& rendezvous, const LaunchEnvironment& launch,
                                const std::string& fingerprint, const BootstrapTimes& times = {});

}  // namespace shardwright::exec
