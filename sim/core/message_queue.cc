// SPDX-License-Identifier: Apache-2.0
#include "sim/core/message_queue.h"

#include <set>

namespace shardwright {

MessageQueue queue_of(const Op& op, std::int32_t stage) {
  const bool sends = op.kind == OpKind::kSend;
  const std::int32_t peer = op.peer;
  return {sends ? stage : peer, sends ? peer : stage, op.channel % 2 != 0};
}

std::vector<MessageQueue> message_queues(const std::vector<Schedule>& stages) {
  std::set<MessageQueue> queues;
  std::int32_t stage = 0;
  for (const Schedule& schedule : stages) {
    for (const Op& op : schedule.ops) {
      if (op.peer >= 0) queues.insert(queue_of(op, stage));
    }
    ++stage;
  }
  return {queues.begin(), queues.end()};
}

}  // namespace shardwright
