// A meeting of processes through the server of rank 0 (exec/comm/meeting_server.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "exec/comm/meeting.h"
#include "exec/comm/meeting_server.h"

namespace shardwright::exec {

struct MeetingAddress {
  std::string host;
  int port = 0;
};

/// Where rank 0 listens, told to whom it may concern.
struct MeetingPlace {
  std::string name;  // "tcp://n0:29501", for people
  int port = 0;      // that rank 0 listens on; 0: a free one
  /// Rank 0 says where it listens.
  std::function<void(const MeetingAddress& address)> publish;
  /// Where rank 0 listens, or none as long as that is not known.
  std::function<std::optional<MeetingAddress>()> find;
  /// How a port that is taken can be changed.
  std::string port_advice;
};

/// Returns when all ranks are there. Throws Error: the port is in use, nobody answers, ranks lack
/// at the deadline, or ranks do not agree about the job.
std::unique_ptr<Meeting> join_meeting(const MeetingPlace& place, const Introduction& self,
                                      const MeetingTimes& times);

}  // namespace shardwright::exec
