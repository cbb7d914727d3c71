// SPDX-License-Identifier: Apache-2.0
// The end of a step: gradient norm over all ranks, clipping, AdamW. And evaluation, which is the
// beginning of one.
#include "exec/executor.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {

void Executor::run_update(const Op& op, const StepOptions& options) {
  if (!updated_.insert(op.kind).second) return;
  switch (op.kind) {
    case OpKind::kGradientNorm:
      return sum_gradients();
    case OpKind::kClip: {
      const StepRecords records{workspace_.record(0), workspace_.plan().exchange_bytes / 8,
                                schedule_.world_ranks(), plan_.grad_accum};
      return device_.finish_gradients(streams_[0], records, options.clip,
                                      workspace_.totals(schedule_.world_ranks()));
    }
    case OpKind::kOptimizer:
      return update(options);
    default:
      SHARDWRIGHT_CHECK(false, "the executor has no {} in the update", name_of(op.kind));
  }
}

void Executor::sum_gradients() {
  const int rank = groups_.world->rank();
  for (std::int32_t u = 0; u < layout_.units(); ++u) {
    for (const Run& run : counted_[static_cast<std::size_t>(u)]) {
      device_.sum_of_squares(streams_[0], sharding_.unit(u).gradient_sum.part(run.first, run.count),
                             workspace_.record(rank));
    }
  }
  if (groups_.world->size() == 1) return;
  // Records are copied, not added, so their type is of no matter.
  const std::int64_t words = workspace_.plan().exchange_bytes / 4;
  groups_.world->all_gather(streams_[0], {workspace_.record(rank), DType::kFp32, words},
                            {workspace_.record(0), DType::kFp32, words * groups_.world->size()});
}

void Executor::update(const StepOptions& options) {
  const StepTotals* totals = workspace_.totals(schedule_.world_ranks());
  for (std::int32_t u = 0; u < layout_.units(); ++u) {
    const UnitMemory& unit = sharding_.unit(u);
    const std::vector<UpdateSegment>& segments = segments_[static_cast<std::size_t>(u)];
    if (segments.empty()) continue;
    device_.adamw(streams_[0], options.adamw, totals, segments, unit.gradient_sum,
                  unit.owned_master, unit.first_moment, unit.second_moment);
  }
  cast_changed();
}

LossSums Executor::evaluate(Batch batch, LossSums sum) {
  const int rank = groups_.world->rank();
  recorder_.prepare_step(0);
  LossSums mine;
  begin_walk(batch, 1, 0);
  finish_work([&] {
    bool is_done = false;
    for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
      const std::optional<Action>& pass = schedule_.sections[at.section].pass;
      if (is_done || (pass ? pass->micro_batch > 0 : at.micro_step > last_prepare_)) return;
      const Phase phase = schedule_.blocks[at.block].phase;
      const bool is_before_loss = at.unit == schedule_.head_unit() && op.phase == Phase::kForward;
      const bool is_forward = phase == Phase::kForward || phase == Phase::kPrepare;
      const bool goes_back = pass && pass->kind != PassKind::kForward;
      if (op.kind == OpKind::kHeadProjection) {
        acquire(at, head_ops_ - 1);
        run_head(at, false);
        is_done = true;
      } else if ((is_forward && !goes_back) || is_before_loss) {
        run_op(at, op, {});
      }
    });
    device_.copy(streams_[0], &mine, workspace_.loss(rank, 0), sizeof mine);
  });
  std::vector<LossSums> all(static_cast<std::size_t>(groups_.world->size()));
  groups_.world->exchange(std::as_bytes(std::span(&mine, 1)),
                          std::as_writable_bytes(std::span(all)));
  // One by one, in the order of a single rank.
  for (const LossSums& part : all) {
    sum.loss += part.loss;
    sum.tokens += part.tokens;
  }
  return sum;
}

}  // namespace shardwright::exec
