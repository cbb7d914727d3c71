// SPDX-License-Identifier: Apache-2.0
#include "sim/strategies/tied_sum.h"

#include "sim/strategies/step_writer.h"

namespace shardwright::sim {

namespace {

Op& write_share(StepWriter& w, OpKind kind, std::uint8_t stream, Bytes bytes, EventRef summed) {
  Op& op = w.op(kind, stream, Phase::kReduce);
  op.work.kind = WorkKind::kTransfer;
  op.work.group = CommGroup::kPipeline;
  op.work.bytes = bytes;
  op.weight = Weight::kHead;
  op.waits[0] = summed;
  return op;
}

/// The other use's sum is added to that of the block's unit.
void write_addition(StepWriter& w, std::int64_t elements, Operand from) {
  const Bytes width = bytes_of(w.schedule().sharding.sum_dtype);
  Op& add = w.memory_op(OpKind::kAccumulate, 0, Phase::kReduce, MemoryClass::kAdd,
                        3 * width * elements, 0);
  add.weight = Weight::kHead;
  add.in[0] = from;
}

/// Of shares, which are the same on both stages. Frameworks add up in place, in the type of
/// parameters.
void write_exchange(StepWriter& w, std::int32_t unit, EventRef summed) {
  const UnitSizes& sizes = w.schedule().unit_sizes;
  const std::int64_t elements = (w.has_head() ? sizes.head : sizes.embedding) / w.shard_ranks();
  const Bytes bytes =
      w.is_static() ? bytes_of(w.schedule().sharding.sum_dtype) * elements : 2 * w.table_elements();
  const std::uint8_t stream = w.stream("pipeline", StreamRole::kCommunication, 0);
  const std::uint8_t send_stream = w.stream("pipeline-send", StreamRole::kCommunication, 0);
  const std::uint8_t sent = w.event("tied_sum_sent"), arrived = w.event("tied_sum_arrived");
  w.begin_block(unit, 1, Phase::kReduce);
  write_share(w, OpKind::kSend, send_stream, bytes, summed).record = {sent, 0};
  Op& receive = write_share(w, OpKind::kReceive, stream, bytes, summed);
  receive.record = {arrived, 0};
  if (w.is_static()) {
    receive.out[0] = Tensor::kReduceOutput;
    w.acquire(Tensor::kReduceOutput, 0, bytes, 0, MemoryCategory::kGradientBuffers);
    w.wait_on_compute({arrived, 0});
    w.wait_on_compute({sent, 0});  // before it becomes another sum
    write_addition(w, elements, Tensor::kReduceOutput);
    w.release(Tensor::kReduceOutput, 0);
  } else {
    w.wait_on_compute({arrived, 0});
    w.op(OpKind::kReceive, 0, Phase::kReduce).work.kernels = 0;
  }
  w.end_block();
}

}  // namespace

void write_tied_sum(StepWriter& w) {
  const StepWriter::TiedSum sum = w.tied_sum();
  const bool is_here = sum == StepWriter::TiedSum::kHere;
  if (sum == StepWriter::TiedSum::kNone || w.plan().numerics.lora > 0) return;
  if (is_here && !w.is_static()) return;  // frameworks add to one sum
  if (!w.has_embedding() && !w.has_head()) return;
  const std::uint8_t summed = w.event("summed");
  w.begin_block(w.first_unit(), 1, Phase::kReduce);
  Op& mark = w.op(OpKind::kSend, 0, Phase::kReduce);  // behind the chunk's reductions
  mark.work.kernels = 0;
  mark.record = {summed, 0};
  w.end_block();
  if (!is_here) {
    const std::int32_t unit = w.has_head() ? w.last_unit() : 0;
    write_exchange(w, unit, {summed, static_cast<std::int16_t>(w.first_unit() - unit)});
  } else if (w.has_head()) {
    w.begin_block(0, 1, Phase::kReduce);
    write_addition(w, w.schedule().unit_sizes.head_gradient / w.shard_ranks(), {});
    w.end_block();
  }
}

}  // namespace shardwright::sim
