// SPDX-License-Identifier: Apache-2.0
// The queues of a pipeline whose messages are held until they are taken (NCCL): one for each
// sender, receiver and direction, with a communicator and a stream of its own. The channels of
// several chunks share one; sender and receiver come to its messages in one order, which
// sim/pipeline/completes.h proves.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "sim/core/schedule.h"

namespace shardwright {

struct MessageQueue {
  std::int32_t from = 0, to = 0;  // stages
  /// Of gradients, against the order of layers. Channels of that direction have odd numbers.
  bool backward = false;
  auto operator<=>(const MessageQueue&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// Of a message of `stage`.
MessageQueue queue_of(const Op& op, std::int32_t stage);

/// All of a pipeline, ascending; none where there is one stage.
std::vector<MessageQueue> message_queues(const std::vector<Schedule>& stages);

}  // namespace shardwright
