// SPDX-License-Identifier: Apache-2.0
#include "exec/cupti/cupti_tracer.h"

#include <utility>

namespace shardwright::exec {

CuptiTracer::CuptiTracer(CuptiSession& session, std::int32_t rank, std::int32_t first,
                         std::int32_t steps, StreamsOfRank streams)
    : session_(session), rank_(rank), first_(first), steps_(steps), streams_(std::move(streams)) {}

bool CuptiTracer::begin_step(std::int32_t step) {
  if (std::exchange(warming_, false)) session_.end();
  const bool watches = step >= first_ && step < first_ + steps_;
  if (!watches && (step + 1 != first_ || step == 0)) return false;
  if (!std::exchange(knows_streams_, true)) {
    RankStreams mine;
    mine.device = CuptiSession::current_device();
    for (const auto& [name, stream] : streams_()) {
      mine.names.push_back(name);
      mine.numbers.push_back(CuptiSession::number_of(stream));
    }
    session_.add_rank(rank_, std::move(mine));
  }
  session_.begin();
  issued_.clear();
  warming_ = !watches;
  return watches;
}

void CuptiTracer::begin_op(OpId id) {
  issued_.push_back({id, steady_now(), 0});
  session_.push(op_tag({rank_, id}));
}

void CuptiTracer::end_op() {
  session_.pop();
  issued_.back().end_ns = steady_now();
}

TracedStep CuptiTracer::take_step() {
  session_.end();
  ++steps_done_;
  return join_activity(session_.log(), session_.clock(), rank_, session_.ranks(), issued_,
                       summary_);
}

std::string CuptiTracer::report() const {
  return describe(summary_, steps_done_);
}

}  // namespace shardwright::exec
