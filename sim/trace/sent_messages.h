// SPDX-License-Identifier: Apache-2.0
// When what a stage of a pipeline receives was sent: what a receive lasts before, it waits.
#pragma once

#include <map>

#include "sim/trace/step_trace.h"

namespace shardwright::sim {

/// By receive, the begin of its send: the messages of a channel arrive in the order in which they
/// are sent, between ranks of one place in their stages. Nothing of a receive whose send is not in
/// the trace, as in predictions, where a message is the receive.
std::map<SpanKey, Nanoseconds> sent_messages(const StepTrace& trace);

}  // namespace shardwright::sim
