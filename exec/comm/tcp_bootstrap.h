// SPDX-License-Identifier: Apache-2.0
// A rendezvous of processes through the server of rank 0 (exec/comm/bootstrap_server.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "exec/comm/bootstrap.h"
#include "exec/comm/bootstrap_server.h"

namespace shardwright::exec {

struct BootstrapAddress {
  std::string host;
  int port = 0;
  std::string secret;  // that rank 0 wrote beside them; may be empty
};

/// Where rank 0 listens, told to whom it may concern.
struct BootstrapPlace {
  std::string name;  // "tcp://n0:29501", for people
  std::string host;  // whose addresses rank 0 listens on; empty: all of its machine
  int port = 0;      // that rank 0 listens on; 0: a free one
  std::string key;   // that all ranks were given; may be empty
  std::string run;   // tells runs apart that meet at the same place; may be empty
  /// Rank 0 says where it listens, and a secret. Empty: all know.
  std::function<void(const BootstrapAddress& address)> publish;
  /// Where rank 0 listens, or none as long as that is not known, and in `why` the reason.
  std::function<std::optional<BootstrapAddress>(std::string& why)> find;
  /// How a port that is taken can be changed.
  std::string port_advice;
};

/// Returns when all ranks are there. Throws Error: the port is in use, nobody answers, ranks lack
/// at the deadline, or ranks do not agree about the job.
std::unique_ptr<Bootstrap> join_bootstrap(const BootstrapPlace& place, const Introduction& self,
                                          const BootstrapTimes& times);

}  // namespace shardwright::exec
