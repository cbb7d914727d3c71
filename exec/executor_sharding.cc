// SPDX-License-Identifier: Apache-2.0
// Gathers, casts and reductions: what strategies put around the operations of the model.
#include "exec/executor.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {

void Executor::run_sharding(const OpInstance& at, const Op& op) {
  const StreamId stream = streams_[op.stream];
  const std::int32_t unit = schedule_.target(op, at.unit);
  switch (op.kind) {
    case OpKind::kCastShard:
      return cast_owned(stream, at.unit);
    case OpKind::kAllGather:
      return gather(unit, stream);
    case OpKind::kCastGradient:
    case OpKind::kCopyIn:
      return take_gradient(unit, op.kind, stream);
    case OpKind::kReduceScatter:
      return reduce_scatter(unit, stream);
    case OpKind::kAllReduce:
      return all_reduce(unit, stream);
    case OpKind::kAccumulate:
      if (op.weight == Weight::kHead) return add_other_use(at, op);
      // Sharded reductions have added onto the sum themselves.
      if (sharding_.shards() == Sharded::kNothing) take_gradient(unit, op.kind, stream);
      return;
    case OpKind::kScale:
      return;  // the update divides
    default:
      SHARDWRIGHT_CHECK(false, "the executor has no {}", name_of(op.kind));
  }
}

void Executor::cast_owned(StreamId stream, std::int32_t first) {
  const auto next = cast_units_.upper_bound(first);
  const std::int32_t end = next != cast_units_.end() ? *next : layout_.units();
  for (std::int32_t u = first; u < end; ++u) {
    const UnitMemory& unit = sharding_.unit(u);
    if (unit.owned_master.data == unit.owned_source.data) continue;
    device_.cast(stream, unit.owned_master, unit.owned_source);
  }
}

void Executor::cast_changed() {
  if (cast_units_.empty()) cast_owned(streams_[0], 0);
}

void Executor::gather(std::int32_t u, StreamId stream) {
  const UnitMemory& unit = sharding_.unit(u);
  groups_.shard->all_gather(stream, unit.owned_source, unit.parameters);
}

void Executor::take_gradient(std::int32_t u, OpKind kind, StreamId stream) {
  const UnitMemory& unit = sharding_.unit(u);
  // Sums that stay whole on a rank are added to; otherwise a gradient is only converted.
  if (sharding_.sums_whole_gradients() && micro_step_ > 0) {
    device_.accumulate(stream, unit.gradient, unit.reduced);
  } else {
    SHARDWRIGHT_CHECK(kind != OpKind::kAccumulate, "nothing to add the gradient of unit {} to", u);
    device_.cast(stream, unit.gradient, unit.reduced);
  }
  poison_gradient(u, stream);
}

void Executor::reduce_scatter(std::int32_t u, StreamId stream) {
  const UnitMemory& unit = sharding_.unit(u);
  Communicator& chain = *groups_.replicate;
  const bool whole = sharding_.sums_whole_gradients();
  bool adds = !whole && micro_step_ > 0;
  // Groups of equal shards add one after the other onto one sum, which the last one then shows to
  // all: that keeps the order of ranks over the whole world. Where sums have no order anyway, each
  // group has its own, and they are added at the end of the step.
  const bool chained = !whole && chain.size() > 1 && chain.ordered();
  if (chained && chain.rank() > 0) {
    chain.receive(stream, unit.gradient_sum, chain.rank() - 1);
    adds = true;
  }
  groups_.shard->reduce_scatter(stream, unit.reduced, unit.gradient_sum, adds, unit.scratch);
  if (chained && chain.rank() + 1 < chain.size()) {
    chain.send(stream, unit.gradient_sum, chain.rank() + 1);
  }
  if (whole) return;
  if (unit.reduced.data == unit.gradient.data) {
    poison_gradient(u, stream);
  } else if (options_.poison) {
    device_.poison(stream, unit.reduced.data, unit.reduced.bytes(), unit.reduced.dtype);
  }
}

void Executor::all_reduce(std::int32_t u, StreamId stream) {
  const UnitMemory& unit = sharding_.unit(u);
  Communicator& group = *groups_.replicate;
  const bool sums_whole = sharding_.sums_whole_gradients();
  if (group.ordered() && !sums_whole) {
    group.broadcast(stream, unit.gradient_sum, group.size() - 1);
  } else if (sums_whole || micro_step_ + 1 == plan_.grad_accum) {
    group.all_reduce(stream, unit.gradient_sum);
  }
}

Array Executor::tied_share(const Operand& where, std::int32_t unit) const {
  Array share = sharding_.unit(unit).gradient_sum;
  if (where) share.data = static_cast<std::byte*>(activations_.at(where, unit));
  return share;
}

// From another stage come the sums of the table's other use, which has the same place in its unit
// there; on this one all gradients of the head lie so, and the last norm's are nowhere else.
void Executor::add_other_use(const OpInstance& at, const Op& op) {
  const StreamId stream = streams_[op.stream];
  const bool is_here = !op.in[0];
  const Array from = tied_share(op.in[0], is_here ? layout_.head_unit() : at.unit);
  const Array to = sharding_.unit(at.unit).gradient_sum;
  for (const OwnedPart& part : layout_.owned(at.unit, sharding_.shard_rank())) {
    const Array more = from.part(part.share_offset, part.count());
    const Array sum = to.part(part.share_offset, part.count());
    if (part.tensor == layout_.tied_table()) {
      device_.accumulate(stream, more, sum);
    } else if (layout_.tensor(part.tensor).gradient_unit != at.unit) {
      device_.cast(stream, more, sum);
    }
  }
}

void Executor::poison_gradient(std::int32_t u, StreamId stream) {
  if (!options_.poison) return;
  const Array gradient = sharding_.unit(u).gradient;
  device_.poison(stream, gradient.data, gradient.bytes(), gradient.dtype);
}

}  // namespace shardwright::exec
