// How the processes of a run find each other: what the launcher tells, or what the user says.
//
//   torchrun        MASTER_ADDR and MASTER_PORT (the next port where torchrun uses that one itself)
//   srun            the first host of the step, and a port made from the job's number
//   mpirun          on one machine a file in the temporary folder, named after the launcher
//   --rendezvous    tcp://HOST:PORT or file:///PATH; with a file on a shared file system rank 0
//   takes
//                   a free port and writes there where it listens
//
// A file that an earlier run left behind does no harm: nobody answers where it points to, or
// somebody who belongs to another run, and ranks look again.
#pragma once

#include <memory>
#include <string>

#include "exec/comm/launch_environment.h"
#include "exec/comm/tcp_meeting.h"

namespace shardwright::exec {

struct Rendezvous {
  std::string file;  // empty: host and port
  std::string host;
  int port = 0;
  std::string run;  // tells runs apart; may be empty

  /// "tcp://n0:29501" or "file:///shared/meet".
  std::string name() const;
  MeetingPlace place() const;
};

/// `wish` is "auto" or what --rendezvous accepts. Throws Error that says what the launcher does not
/// tell.
Rendezvous choose_rendezvous(const std::string& wish, const LaunchEnvironment& launch,
                             const Environment& environment);

/// The first host of a list of Slurm's: "n[007-009,12],m1" is n007.
std::string first_slurm_host(const std::string& list);

/// All ranks with the same fingerprint at the same place.
std::unique_ptr<Meeting> meet(const Rendezvous& rendezvous, const LaunchEnvironment& launch,
                              const std::string& fingerprint, const MeetingTimes& times = {});

}  // namespace shardwright::exec
