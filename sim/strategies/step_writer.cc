// SPDX-License-Identifier: Apache-2.0
#include "sim/strategies/step_writer.h"

#include <algorithm>
#include <utility>

#include "sim/core/base/check.h"
#include "sim/core/local_shape.h"
#include "sim/program/adapters.h"
#include "sim/program/low_precision.h"

namespace shardwright::sim {

namespace {

constexpr std::int64_t kSplitBytes = std::int64_t{1} << 31;  // PyTorch's 32-bit indexing limit

/// How often TensorIterator halves a tensor until every piece is addressable with 32 bits.
int pieces_of(std::int64_t tensor_bytes) {
  int pieces = 1;
  while (tensor_bytes > kSplitBytes) {
    tensor_bytes = (tensor_bytes + 1) / 2;
    pieces *= 2;
  }
  return pieces;
}

/// In the order of UnitEvent.
constexpr std::array<const char*, 3> kUnitEvents = {"computed", "arrived", "arrived_too"};

/// The host's waits name events of a pass, too.
bool pass_communicates(const UnitPass& pass) {
  return std::any_of(pass.ops.begin(), pass.ops.end(), [](const Op& op) {
    return op.record.name >= static_cast<std::uint8_t>(UnitEvent::kComputed);
  });
}

/// Of a product whose result is added to the sum of gradients, as sim/cost/op_cost.h reads
/// it.
Bytes traffic_with_sum(const Work& work) {
  const Bytes sum = bytes_of(DType::kFp32) * work.m * work.n;
  return work.bytes > 0 ? work.bytes + sum
                        : work.dtype_bytes * work.k * (work.m + work.n) + 2 * sum;
}

}  // namespace

StepWriter::StepWriter(const Model& model, const Plan& plan, const Stack& stack,
                       const Cluster& cluster, const LayerPrograms* programs,
                       const ChunkContent& content, Schedule& out)
    : model_(model),
      plan_(plan),
      stack_(stack),
      gpu_(cluster.gpu),
      programs_(programs),
      content_(content),
      schedule_(out) {
  schedule_.clear();
  schedule_.layers = content.layers;
  schedule_.layout = layout_of(plan, cluster);
  for (const CommGroup group : {CommGroup::kWorld, CommGroup::kShard, CommGroup::kReplicate,
                                CommGroup::kSecondShard, CommGroup::kExpertData}) {
    schedule_.group(group) = schedule_.layout.group(group);
  }
  schedule_.event_names.push_back("");
  stream("compute", StreamRole::kCompute, 0);
}

std::uint8_t StepWriter::stream(const char* name, StreamRole role, int priority,
                                int collective_priority) {
  schedule_.streams.push_back({name, role, priority, collective_priority});
  return static_cast<std::uint8_t>(schedule_.streams.size() - 1);
}

std::uint8_t StepWriter::event(const char* name) {
  schedule_.event_names.push_back(name);
  return static_cast<std::uint8_t>(schedule_.event_names.size() - 1);
}

UnitKind StepWriter::kind_at(std::int32_t unit) const {
  if (unit == 0) return content_.embedding ? UnitKind::kEmbedding : UnitKind::kOutside;
  if (unit >= 1 && unit <= content_.layers) {
    return unit_kind(model_.kind(content_.first_layer + unit - 1));
  }
  if (unit != schedule_.head_unit()) return UnitKind::kOutside;
  if (content_.head) return UnitKind::kHead;
  return content_.extra_predictions > 0 ? UnitKind::kPrediction : UnitKind::kOutside;
}

UnitKind StepWriter::kind(int offset) {
  const UnitKind answer = kind_at(unit_ + offset);
  if (offset != 0) queries_.push_back({offset, answer});
  return answer;
}

std::int64_t StepWriter::elements(int offset) {
  return elements_of(kind(offset));
}
std::int64_t StepWriter::owned(int offset) {
  return owned_of(elements_[static_cast<std::size_t>(kind(offset))]);
}
std::int64_t StepWriter::trained(int offset) {
  return trained_[static_cast<std::size_t>(kind(offset))].all();
}
std::int64_t StepWriter::trained_owned(int offset) {
  return owned_of(trained_[static_cast<std::size_t>(kind(offset))]);
}

std::int64_t StepWriter::largest_trained() const {
  std::int64_t largest = 0;
  for (const Elements& of : trained_) largest = std::max(largest, of.all());
  return largest;
}

std::int64_t StepWriter::gathered_bytes(std::int64_t elements) const {
  const Quantize quantize = plan_.numerics.quantize;
  if (quantize != Quantize::kNone) {
    return static_cast<std::int64_t>(quantized_weight_bytes(quantize) *
                                     static_cast<double>(elements));
  }
  return (gathers_narrow_weights(plan_) ? 1 : bytes_of(plan_.param_dtype)) * elements;
}

void StepWriter::split_experts(const Block& block) {
  for (std::size_t i = block.first_op; i < schedule_.ops.size(); ++i) {
    Op& op = schedule_.ops[i];
    if (op.work.kind != WorkKind::kCollective || op.collective || op.target == kNormUnit) continue;
    const auto& of_units = op.kind == OpKind::kAllGather ? elements_ : trained_;
    const Elements& of = op.phase == Phase::kOptimizer
                             ? total_trained_
                             : of_units[static_cast<std::size_t>(kind_at(unit_ + op.target))];
    if (of.experts == 0) continue;
    const auto part = [&](double share) {
      return static_cast<std::int64_t>(static_cast<double>(op.work.bytes) * share);
    };
    const double experts = static_cast<double>(of.experts);
    if (op.work.group == CommGroup::kShard || shard_ranks() == 1) {
      op.work.expert_bytes = part(experts / static_cast<double>(of.all()));
      op.work.bytes -= op.work.expert_bytes;
    } else if (op.work.group == CommGroup::kReplicate) {
      // All ranks with the same experts have added theirs up already.
      op.work.bytes =
          part(static_cast<double>(of.dense) / static_cast<double>(shard_ranks() * owned_of(of)));
    }
  }
}

bool StepWriter::checkpointed(std::int32_t unit) const {
  if (!is_layer(kind_at(unit))) return false;
  return plan_.checkpointed(unit - 1);
}

void StepWriter::begin_on_compute(Op& op) {
  SHARDWRIGHT_CHECK(compute_waits_.size() <= kMaxWaits, "{} waits on one operation",
                    compute_waits_.size());
  std::copy(compute_waits_.begin(), compute_waits_.end(), op.waits);
  compute_waits_.clear();
  op.work.host_s = pending_hook_s_;
  pending_hook_s_ = 0;
  last_compute_op_ = static_cast<std::uint32_t>(schedule_.ops.size() - 1);
}

Op& StepWriter::op(OpKind kind, std::uint8_t stream, Phase phase) {
  Op& op = schedule_.ops.emplace_back();
  op.kind = kind;
  op.stream = stream;
  op.phase = phase;
  if (stream == 0) begin_on_compute(op);
  return op;
}

Op& StepWriter::collective(OpKind kind, std::uint8_t stream, Phase phase, std::int64_t bytes,
                           DType dtype, CommGroup group) {
  Op& written = op(kind, stream, phase);
  written.work.kind = WorkKind::kCollective;
  written.work.bytes = bytes;
  written.work.dtype_bytes = static_cast<std::uint8_t>(bytes_of(dtype));
  written.work.group = group;
  return written;
}

Op& StepWriter::memory_op(OpKind kind, std::uint8_t stream, Phase phase, MemoryClass memory_class,
                          std::int64_t bytes, std::int64_t tensor_bytes,
                          std::initializer_list<EventRef> waits) {
  const int pieces = stack_.splits_large_elementwise ? pieces_of(tensor_bytes) : 1;
  for (int i = 0; i < pieces; ++i) {
    Op& written = op(kind, stream, phase);
    written.part = static_cast<std::uint8_t>(i);
    written.work.kind = WorkKind::kMemory;
    written.work.memory_class = memory_class;
    written.work.bytes = bytes / pieces;
    if (i == 0) {
      std::size_t slot = 0;
      while (slot < kMaxWaits && written.waits[slot]) ++slot;
      for (EventRef wait : waits) {
        SHARDWRIGHT_CHECK(slot < kMaxWaits, "too many waits on {}", name_of(kind));
        written.waits[slot++] = wait;
      }
    }
  }
  return schedule_.ops.back();
}

void StepWriter::host_wait(EventRef event, double wakeup_s) {
  Op& written = schedule_.ops.emplace_back();
  written.kind = OpKind::kHostWork;
  written.host_waits = true;
  written.waits[0] = event;
  written.work.kind = WorkKind::kHost;
  written.work.host_s = wakeup_s;
}

void StepWriter::synchronize(Phase phase) {
  Op& written = schedule_.ops.emplace_back();
  written.kind = OpKind::kSynchronize;
  written.phase = phase;
  written.host_waits = true;
  written.work.kind = WorkKind::kHost;
}

void StepWriter::host_work(double seconds, Phase phase) {
  Op& written = schedule_.ops.emplace_back();
  written.kind = OpKind::kHostWork;
  written.phase = phase;
  written.work.kind = WorkKind::kHost;
  written.work.host_s = seconds;
}

void StepWriter::wait_on_compute(EventRef event) {
  compute_waits_.push_back(event);
}

void StepWriter::unit_hook() {
  pending_hook_s_ += stack_.host.unit_hook_s;
}

void StepWriter::number(Op& op) {
  const auto numbered = [&](EventRef& event) {
    const int index = event.name - static_cast<int>(UnitEvent::kComputed);
    if (index >= 0) event.name = unit_events_[static_cast<std::size_t>(index)];
  };
  for (EventRef& wait : op.waits) numbered(wait);
  numbered(op.record);
  if (op.stream == kUnitCommunication) op.stream = unit_stream_;
}

void StepWriter::compute_pass(const UnitPass& pass) {
  const auto first = static_cast<std::uint32_t>(schedule_.ops.size());
  if (memory_alone_) {
    op(OpKind::kHostWork, 0, Phase::kForward);
    const std::size_t before = schedule_.memory.size();
    schedule_.memory.insert(schedule_.memory.end(), pass.memory.begin(), pass.memory.end());
    for (std::size_t i = before; i < schedule_.memory.size(); ++i)
      schedule_.memory[i].op = first - schedule_.blocks.back().first_op;
    return;
  }
  if (unit_stream_ == 0 && pass_communicates(pass)) {
    unit_stream_ = stream("model-parallel", StreamRole::kCommunication, 0);
    std::transform(kUnitEvents.begin(), kUnitEvents.end(), unit_events_.begin(),
                   [&](const char* name) { return event(name); });
  }
  const std::uint32_t block_first = schedule_.blocks.back().first_op;
  // What has been asked of the next operation on the compute stream is the first one's to do.
  schedule_.ops.insert(schedule_.ops.end(), pass.ops.begin(), pass.ops.end());
  for (std::size_t i = first; i < schedule_.ops.size(); ++i) number(schedule_.ops[i]);
  begin_on_compute(schedule_.ops[first]);
  if (sums_in_backward()) {
    for (std::size_t i = first; i < schedule_.ops.size(); ++i) {
      Op& op = schedule_.ops[i];
      if (op.kind == OpKind::kWeightGradient) op.work.bytes = traffic_with_sum(op.work);
    }
  }
  last_compute_op_ = static_cast<std::uint32_t>(schedule_.ops.size() - 1);
  for (MemoryAction action : pass.memory) {
    action.op += first - block_first;
    schedule_.memory.push_back(action);
  }
}

void StepWriter::record_on_compute(std::uint8_t event_name) {
  Op& last = schedule_.ops[last_compute_op_];
  SHARDWRIGHT_CHECK(!last.record && last_compute_op_ >= schedule_.blocks.back().first_op,
                    "event {} has no operation of its own to be recorded on",
                    schedule_.event_names[event_name]);
  last.record = {event_name, 0};
}

std::uint32_t StepWriter::last_in_block() const {
  return static_cast<std::uint32_t>(schedule_.ops.size() - 1) - schedule_.blocks.back().first_op;
}

Bytes& StepWriter::acquired_bytes(Tensor tensor, int offset) {
  std::vector<std::pair<UnitKind, Bytes>>& kinds = acquired_bytes_[index_of(tensor)];
  const UnitKind kind = kind_at(unit_ + offset);
  for (auto& [known, bytes] : kinds) {
    if (known == kind) return bytes;
  }
  return kinds.emplace_back(kind, 0).second;
}

MemoryAction& StepWriter::act(bool acquire, Tensor tensor, int offset, Bytes bytes) {
  MemoryAction& action = schedule_.memory.emplace_back();
  action.op = last_in_block();
  action.acquire = acquire;
  action.tensor = tensor;
  action.offset = static_cast<std::int16_t>(offset);
  action.bytes = bytes;
  return action;
}

void StepWriter::acquire(Tensor tensor, int offset, std::int64_t bytes, std::uint8_t stream,
                         MemoryCategory category) {
  if (bytes <= 0) return;
  MemoryAction& action = act(true, tensor, offset, bytes);
  action.stream = stream;
  action.category = category;
  acquired_bytes(tensor, offset) = bytes;
  category_[index_of(tensor)] = category;
}

void StepWriter::release(Tensor tensor, int offset, std::uint8_t used_on) {
  const Bytes bytes = acquired_bytes(tensor, offset);
  if (bytes <= 0) return;
  MemoryAction& action = act(false, tensor, offset, bytes);
  action.used_on = used_on;
  action.category = category_[index_of(tensor)];
}

void StepWriter::release_all(Tensor tensor, std::int64_t bytes, MemoryCategory category) {
  act(false, tensor, kAllUnits, bytes).category = category;
}

void StepWriter::release_made(Tensor tensor, int offset, std::int64_t bytes, std::uint8_t used_on) {
  if (bytes > 0) act(false, tensor, offset, bytes).used_on = used_on;
}

void StepWriter::release_shard_gradients() {
  release_all(Tensor::kShardGradient, bytes_of(plan_.master_dtype) * total_trained_owned(),
              MemoryCategory::kGradients);
}

void StepWriter::release_held() {
  if (!holds()) return;
  std::int64_t checkpointed_layers = 0;
  for (std::int32_t unit = 1; unit <= content_.layers; ++unit)
    checkpointed_layers += checkpointed(unit);
  for (MemoryAction action : programs_->held(checkpointed_layers, content_.head)) {
    action.op = last_in_block();
    schedule_.memory.push_back(action);
  }
}

void StepWriter::release_weight_gradients(std::uint8_t used_on) {
  const auto of_pass = [&](const UnitPass& pass, int offset) {
    for (const MemoryAction& action : pass.memory) {
      if (action.acquire && is_weight_gradient(action.tensor)) {
        acquired_bytes(action.tensor, offset) = action.bytes;
        category_[index_of(action.tensor)] = action.category;
        release(action.tensor, offset, used_on);
      }
    }
  };
  if (kind() == UnitKind::kHead && elements() == 0) return;  // handed over with unit 0
  of_pass(backward_pass(), 0);
  if (kind() == UnitKind::kEmbedding && tied()) {
    of_pass(programs_->head_backward(content_.extra_predictions),
            static_cast<int>(content_.layers) + 1);
  }
}

void StepWriter::begin_section() {
  Section& section = schedule_.sections.emplace_back();
  section.first_block = static_cast<std::uint32_t>(schedule_.blocks.size());
}

void StepWriter::end_section(std::int32_t repeats) {
  Section& section = schedule_.sections.back();
  section.block_count = static_cast<std::uint32_t>(schedule_.blocks.size()) - section.first_block;
  section.repeats = repeats;
}

void StepWriter::begin_block(std::int32_t unit, int step, Phase phase) {
  SHARDWRIGHT_CHECK(compute_waits_.empty() || unit == unit_,
                    "waits relative to unit {} carried over to unit {}", unit_, unit);
  unit_ = unit;
  queries_.clear();
  Block block;
  block.first_op = static_cast<std::uint32_t>(schedule_.ops.size());
  block.first_action = static_cast<std::uint32_t>(schedule_.memory.size());
  block.first_unit = unit;
  block.unit_step = step;
  block.phase = phase;
  schedule_.blocks.push_back(block);
}

void StepWriter::end_block() {
  Block& block = schedule_.blocks.back();
  block.op_count = static_cast<std::uint32_t>(schedule_.ops.size()) - block.first_op;
  block.action_count = static_cast<std::uint32_t>(schedule_.memory.size()) - block.first_action;
  if (block.op_count == 0) {
    SHARDWRIGHT_CHECK(block.action_count == 0, "memory actions without an operation");
    schedule_.blocks.pop_back();
    return;
  }
  if (total_.experts > 0) split_experts(block);
  // Stable, and quick for what is nearly in order.
  std::vector<MemoryAction>& memory = schedule_.memory;
  for (std::size_t i = block.first_action + 1; i < memory.size(); ++i) {
    const MemoryAction action = memory[i];
    std::size_t at = i;
    for (; at > block.first_action && memory[at - 1].op > action.op; --at)
      memory[at] = memory[at - 1];
    memory[at] = action;
  }
}

bool StepWriter::extend_to(std::int32_t unit) {
  Block& block = schedule_.blocks.back();
  if (kind_at(unit) != kind_at(unit_) || checkpointed(unit) != checkpointed(unit_)) return false;
  for (const Query& query : queries_) {
    if (kind_at(unit + query.offset) != query.answer) return false;
  }
  ++block.repeats;
  return true;
}

void StepWriter::set_micro_step(bool first, bool last) {
  first_micro_ = first;
  last_micro_ = last;
}

const UnitPass& StepWriter::forward_pass() const {
  // Forward of a micro-batch runs with backward of the one before it; in a pipeline, whose passes
  // these are, of any.
  const LayerPrograms& programs = first_micro_ && content_.whole ? programs_->alone() : *programs_;
  switch (kind_at(unit_)) {
    case UnitKind::kEmbedding:
      return programs.embedding_forward();
    case UnitKind::kHead:
      return programs.head_forward(content_.extra_predictions);
    case UnitKind::kPrediction:
      return programs.predictions_forward(content_.extra_predictions);
    default:
      return programs.layer_forward(checkpointed(unit_),
                                    model_.kind(content_.first_layer + unit_ - 1));
  }
}

Bytes StepWriter::kept_bytes(std::int32_t unit) {
  const std::int32_t current = std::exchange(unit_, unit);
  Bytes kept = 0;
  for (const MemoryAction& action : forward_pass().memory)
    kept += action.acquire ? action.bytes : -action.bytes;
  unit_ = current;
  return kept;
}

const UnitPass& StepWriter::backward_pass() const {
  const LayerPrograms& programs = last_micro_ && content_.whole ? programs_->alone() : *programs_;
  switch (kind_at(unit_)) {
    case UnitKind::kEmbedding:
      return programs.embedding_backward();
    case UnitKind::kHead:
      return programs.head_backward(content_.extra_predictions);
    case UnitKind::kPrediction:
      return programs.predictions_backward(content_.extra_predictions);
    default:
      return programs.layer_backward(checkpointed(unit_),
                                     model_.kind(content_.first_layer + unit_ - 1));
  }
}

// How many parameters the units of a chunk have, as a strategy lays them out, and which are
// trained.

namespace {

/// What a rank of the mesh holds of a unit, as a strategy lays it out over `ranks`.
std::int64_t unit_elements(const std::vector<WeightShape>& weights, bool is_layer,
                           const Parallelism& parallel, const UnitLayout& layout,
                           std::int64_t ranks) {
  std::int64_t elements = 0, rest = 0;
  for (const WeightShape& weight : weights) {
    if (weight.is_norm && layout.separates_norms) continue;
    const WeightSlices slices = slices_of(weight, parallel);
    const std::int64_t held = slices.elements(weight);
    const bool pads = layout.pads_rows && weight.is_matrix() && weight.weight != Weight::kPositions;
    if (!pads) {
      rest += held;
      continue;
    }
    const std::int64_t columns = slices.each.along == SliceAlong::kColumns
                                     ? slices.each.of(weight.columns).size()
                                     : weight.columns;
    elements += round_up(held / columns, ranks) * columns;
  }
  // Norms and biases of a layer are padded together.
  return elements + (layout.pads_rows && is_layer ? round_up(rest, ranks) : rest);
}

}  // namespace

void StepWriter::set_layout(const UnitLayout& layout) {
  layout_ = layout;
  const std::int64_t n = schedule_.shard_ranks();
  const auto pad = [n](std::int64_t elements) { return elements == 0 ? 0 : round_up(elements, n); };
  const auto elements = [&](ModelUnit unit) {
    return unit_elements(weights_of(model_, unit), false, plan_.parallel, layout, n);
  };
  const auto layer_elements = [&](LayerKind kind) {
    return pad(unit_elements(weights_of(model_, kind), true, plan_.parallel, layout, n));
  };
  const std::int64_t embedding = elements(ModelUnit::kEmbedding);
  const std::int64_t head = elements(ModelUnit::kHead);
  const TiedSum tied = tied_sum();
  UnitSizes& sizes = schedule_.unit_sizes;
  sizes = {};
  sizes.in_parts = !content_.whole;
  sizes.layer = layer_elements({});
  const bool together = content_.embedding && content_.head;
  const bool own_head = !together || (layout.wraps_embedding_and_head && !model_.tied_head);
  // A tied head without the embedding beside it has a copy of its table.
  const std::int64_t table = tied == TiedSum::kBetweenStages ? table_elements() : 0;
  const bool uses_apart = tied == TiedSum::kHere && is_static();
  const bool with_head = !own_head || uses_apart;
  if (content_.embedding) sizes.embedding = pad(with_head ? embedding + head : embedding);
  if (content_.head) sizes.head = with_head ? 0 : pad(head + table);
  if (content_.head && uses_apart) sizes.head_gradient = pad(embedding + head);
  if (table > 0 && is_static()) {
    // Ranks have the same share of both copies, whose sums they exchange.
    const std::int64_t both = pad(std::max(embedding, head + table));
    if (content_.embedding) sizes.embedding = both;
    if (content_.head) sizes.head = both;
  }
  if (model_.is_moe()) {
    sizes.moe_layers = content_.expert_layers;
    sizes.moe_layer = layer_elements({Mixer::kAttention, Channels::kExperts});
    sizes.experts =
        round_up(elements(ModelUnit::kExperts), schedule_.group(CommGroup::kExpertData).size);
  }
  if (layout.separates_norms) {
    const std::int64_t norms = ModelUnits(model_, plan_.parallel).elements(ModelUnit::kNorms);
    sizes.norms = pad(norms * content_.layers / model_.layers);
  }
  Elements& of_head = elements_[static_cast<std::size_t>(UnitKind::kHead)];
  elements_ = {};
  elements_[static_cast<std::size_t>(UnitKind::kEmbedding)].dense = sizes.embedding;
  of_head.dense = sizes.head;
  const auto of_kind = [&](LayerKind kind) -> Elements& {
    return elements_[static_cast<std::size_t>(unit_kind(kind))];
  };
  of_kind({}).dense = sizes.layer;
  of_kind({Mixer::kAttention, Channels::kExperts}) = {sizes.moe_layer, sizes.experts};
  if (!model_.kinds.empty()) {
    sizes.layer = sizes.moe_layer = 0;
    for (const LayerKind kind : kinds_of(model_)) {
      const bool experts = kind.channels == Channels::kExperts;
      of_kind(kind) = {layer_elements(kind), experts ? sizes.experts : 0};
      std::int64_t& largest = experts ? sizes.moe_layer : sizes.layer;
      largest = std::max(largest, of_kind(kind).dense);
    }
    for (std::int64_t i = 0; i < content_.layers; ++i)
      sizes.mixed_layers += of_kind(model_.kind(content_.first_layer + i)).dense;
  }
  const std::int64_t predictions = content_.extra_predictions;
  if (predictions > 0) {
    // Modules of multi-token prediction: a projection and a layer like the last one, each.
    const ModelUnits units(model_, plan_.parallel);
    const Elements layer = {layer_elements(model_.mtp_kind()), sizes.experts};
    sizes.predictions = predictions * (layer.dense + pad(units.prediction_projection()));
    sizes.prediction_experts = predictions * layer.experts;
    Elements& of_predictions =
        content_.head ? of_head : elements_[static_cast<std::size_t>(UnitKind::kPrediction)];
    of_predictions.dense += sizes.predictions;
    of_predictions.experts += sizes.prediction_experts;
  }
  total_ = {sizes.total(content_.layers), sizes.all_experts()};
  set_trained();
}

StepWriter::TiedSum StepWriter::tied_sum() const {
  if (!model_.tied_head || plan_.use_parts() < 2) return TiedSum::kNone;
  if (content_.whole) return is_static() ? TiedSum::kHere : TiedSum::kNone;
  // A pipeline in the shape of a V ends where it begins.
  const bool is_v = info_of(plan_.parallel.schedule()).order == ChunkOrder::kV;
  return is_v ? TiedSum::kHere : TiedSum::kBetweenStages;
}

std::int64_t StepWriter::table_elements() const {
  return ModelUnits(model_, plan_.parallel).vocabulary();
}

void StepWriter::set_trained() {
  trained_ = elements_;
  total_trained_ = total_;
  if (plan_.numerics.lora == 0) return;
  trained_ = {};
  total_trained_ = {};
  const std::int64_t expert_ranks = schedule_.group(CommGroup::kExpertData).size;
  const auto at = [](LayerKind kind) { return static_cast<std::size_t>(unit_kind(kind)); };
  for (const LayerKind kind : kinds_of(model_)) {
    const AdapterElements adapters = adapter_elements(model_, plan_, stack_, kind);
    trained_[at(kind)] = {round_up(adapters.dense, shard_ranks()),
                          round_up(adapters.experts, expert_ranks)};
    elements_[at(kind)] += trained_[at(kind)];
  }
  for (std::int64_t i = 0; i < content_.layers; ++i)
    total_trained_ += trained_[at(model_.kind(content_.first_layer + i))];
  total_ += total_trained_;
}

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

bool ActivationOffload::acts_on(StepWriter& w, int offset) const {
  return layer_bytes_ > 0 && is_layer(w.kind(offset));
}

void ActivationOffload::declare(StepWriter& w) {
  const auto layers = static_cast<std::int32_t>(w.layers());
  if (w.plan().offload != Offload::kActivations || layers == 0) return;
  const auto offloaded = std::min(layers, static_cast<std::int32_t>(w.plan().offload_layers));
  Bytes bytes = 0;
  for (std::int32_t unit = layers - offloaded + 1; unit <= layers; ++unit)
    bytes += w.kept_bytes(unit);
  layer_bytes_ = bytes / layers;
  if (layer_bytes_ == 0) return;
  stream_ = w.stream("offload", StreamRole::kSide, 0);
  kept_ = w.event("kept");
  left_ = w.event("left");
  returned_ = w.event("returned");
  used_ = w.event("used");
}

/// Of a place in the compute stream that takes no time.
void ActivationOffload::mark(StepWriter& w, Phase phase, std::uint8_t record) const {
  Op& marker = w.op(OpKind::kHostWork, 0, phase);
  marker.work.kernels = 0;
  marker.record = {record, 0};
}

void ActivationOffload::copy(StepWriter& w, OpKind kind, Phase phase, int offset, EventRef after,
                             std::uint8_t record) const {
  Op& op = w.op(kind, stream_, phase);
  op.target = static_cast<std::int8_t>(offset);
  op.work.kind = WorkKind::kTransfer;
  op.work.bytes = layer_bytes_;
  op.waits[0] = after;
  op.record = {record, static_cast<std::int16_t>(offset)};
  if (kind == OpKind::kCopyIn)
    w.acquire(Tensor::kOffloaded, offset, layer_bytes_, stream_, MemoryCategory::kActivations);
}

void ActivationOffload::before_forward(StepWriter& w) {
  if (acts_on(w, 0) && acts_on(w, -2)) w.wait_on_compute({left_, -2});
}

void ActivationOffload::after_forward(StepWriter& w) {
  if (!acts_on(w, 0)) return;
  mark(w, Phase::kForward, kept_);
  copy(w, OpKind::kCopyOut, Phase::kForward, 0, {kept_, 0}, left_);
  w.release_made(Tensor::kOffloaded, 0, layer_bytes_, stream_);
}

void ActivationOffload::before_backward(StepWriter& w) {
  if (!acts_on(w, 0)) return;
  if (!acts_on(w, 1)) copy(w, OpKind::kCopyIn, Phase::kBackward, 0, {}, returned_);
  w.wait_on_compute({returned_, 0});
  if (acts_on(w, -1)) copy(w, OpKind::kCopyIn, Phase::kBackward, -1, {used_, 1}, returned_);
}

void ActivationOffload::after_backward(StepWriter& w) {
  if (acts_on(w, 0)) mark(w, Phase::kBackward, used_);
}

}  // namespace shardwright::sim
