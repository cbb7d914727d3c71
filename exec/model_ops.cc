// SPDX-License-Identifier: Apache-2.0
#include "exec/model_ops.h"

#include <algorithm>
#include <cmath>

#include "kernels/bf16.h"
#include "sim/core/base/check.h"
#include "sim/core/units.h"

namespace shardwright::exec {

const ModelOps::Entry ModelOps::kTable[] = {
    {OpKind::kEmbedding, false, &ModelOps::embedding},
    {OpKind::kNorm, false, &ModelOps::norm},
    {OpKind::kQkvProjection, false, &ModelOps::product},
    {OpKind::kQkNorm, false, &ModelOps::head_norms},
    {OpKind::kRope, false, &ModelOps::rope},
    {OpKind::kAttention, false, &ModelOps::attention},
    {OpKind::kOutputProjection, false, &ModelOps::product},
    {OpKind::kGateUpProjection, false, &ModelOps::product},
    {OpKind::kUpProjection, false, &ModelOps::product},
    {OpKind::kActivation, false, &ModelOps::activation},
    {OpKind::kDownProjection, false, &ModelOps::product},
    {OpKind::kHeadProjection, false, &ModelOps::product},
    {OpKind::kLoss, false, &ModelOps::loss},
    {OpKind::kInputGradient, true, &ModelOps::input_gradient},
    {OpKind::kWeightGradient, true, &ModelOps::weight_gradient},
    {OpKind::kAccumulate, true, &ModelOps::bias_gradient},
    {OpKind::kEmbedding, true, &ModelOps::embedding_backward},
    {OpKind::kNorm, true, &ModelOps::norm_backward},
    {OpKind::kQkNorm, true, &ModelOps::head_norms_backward},
    {OpKind::kRope, true, &ModelOps::rope},
    {OpKind::kAttention, true, &ModelOps::attention_backward},
    {OpKind::kActivation, true, &ModelOps::activation_backward},
    {OpKind::kAllGather, false, &ModelOps::gather},
    {OpKind::kAllGather, true, &ModelOps::gather},
    {OpKind::kReduceScatter, false, &ModelOps::reduce},
    {OpKind::kReduceScatter, true, &ModelOps::reduce},
    {OpKind::kAllReduce, false, &ModelOps::reduce},
    {OpKind::kAllReduce, true, &ModelOps::reduce},
};

kernels::AttentionShape attention_shape_of(const Model& model, const Plan& plan,
                                           std::int64_t tensor_rank) {
  const double usual_scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  const RankShape shape = rank_shape(model, plan);
  return {.batch = plan.micro_batch,
          .seq = shape.seq_len,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = model.head_dim,
          .scale = model.attention_scale != 0 ? model.attention_scale : usual_scale,
          .softcap = model.attention_softcap,
          .alibi = model.position == Position::kAlibi,
          .first_head = tensor_rank * shape.heads,
          .all_heads = model.heads};
}

ModelOps::ModelOps(const Model& model, const Plan& plan, const Sharding& sharding,
                   const Activations& activations, const Workspace& workspace, Device& device,
                   const std::vector<StreamId>& streams, const RankGroups& groups,
                   const RankPlace& place)
    : model_(model),
      sharding_(sharding),
      layout_(sharding.layout()),
      activations_(activations),
      workspace_(workspace),
      device_(device),
      streams_(streams),
      stream_(streams.front()),
      groups_(groups),
      world_rank_(groups.world->rank()),
      dtype_(plan.param_dtype),
      shape_(rank_shape(model, plan)),
      local_(model_of_rank(model, shape_)),
      tensor_rank_(place.tp),
      leaves_(plan.feature_parts() / shape_.tp),
      order_(is_power_of_two(shape_.tp) ? SumOrder::kTree : SumOrder::kRanks),
      packed_cols_(columns_of(Tensor::kQkv, local_)),
      attention_(attention_shape_of(model, plan, place.tp)) {
  if (plan.numerics.precision == Precision::kFp8) {
    fp8_.emplace(plan_fp8_workspace(model, shape_.tokens), workspace.fp8(), plan.numerics.recipe(),
                 device, stream_);
  }
  embedding_scale_ =
      dtype_ == DType::kFp32
          ? model.embedding_scale
          : kernels::to_float(kernels::to_bf16(static_cast<float>(model.embedding_scale)));
}

void ModelOps::begin_micro_step(std::int64_t micro_step) {
  micro_step_ = micro_step;
  batch_ = workspace_.batch(micro_step);
}

bool ModelOps::owns(const Op& op) {
  if (op.kind == OpKind::kAccumulate) return op.of != OpKind::kHostWork;
  return op.kind <= OpKind::kWeightGradient || moves_activations(op);
}

void ModelOps::run(const Op& op, std::int32_t unit) {
  const bool backward = op.phase == Phase::kBackward;
  const auto entry = std::find_if(std::begin(kTable), std::end(kTable), [&](const Entry& e) {
    return e.kind == op.kind && e.backward == backward;
  });
  SHARDWRIGHT_CHECK(entry != std::end(kTable), "the executor has no {} {}", name_of(op.phase),
                    name_of(op.kind));
  if (fp8_ && op.kind != OpKind::kWeightGradient) fp8_->forget();
  (this->*entry->call)(op, unit);
}

// Views.

Matrix ModelOps::rows(const Operand& operand, std::int32_t unit) const {
  void* data = activations_.at(operand, unit);
  const Slice::Range tokens = chunk_.value_or(Slice::Range{0, tokens_of(operand.tensor)});
  if (operand.tensor == Tensor::kLogits) {
    return {data, device_.logits_dtype(dtype_), tokens.size(),
            layout_.weight(Weight::kHead, unit).rows};
  }
  const Matrix whole(data, dtype_, tokens_of(operand.tensor), columns_of(operand.tensor, local_));
  return whole.row_range(tokens.begin, tokens.size());
}

float* ModelOps::statistics(const Operand& operand, std::int32_t unit) const {
  return static_cast<float*>(activations_.at(operand, unit));
}

PackedHeads ModelOps::packed(const Operand& operand, std::int32_t unit) const {
  return {rows(operand, unit), attention_};
}

Heads ModelOps::query_heads(const Matrix& from) const {
  return {from.data, from.dtype, from.rows, local_.heads, local_.head_dim, from.stride};
}

Heads ModelOps::key_heads(const Matrix& from) const {
  void* data =
      from.cols == packed_cols_ ? advance(from.data, from.dtype, local_.q_dim()) : from.data;
  return {data, from.dtype, from.rows, local_.kv_heads, local_.head_dim, from.stride};
}

const WeightTensors& ModelOps::tensors_of(const Op& op, std::int32_t unit) const {
  return layout_.weight(op.weight, unit);
}

Matrix ModelOps::weight(const Op& op, std::int32_t unit) const {
  const WeightTensors& t = tensors_of(op, unit);
  return {parameter(t.first, t.rows * t.cols).data, dtype_, t.rows, t.cols};
}

Matrix ModelOps::gradient(const Op& op, std::int32_t unit) const {
  const WeightTensors& t = tensors_of(op, unit);
  const std::int32_t in = t.gradient_unit;
  const Array whole = in < 0 ? parameter_gradient(t.first, t.rows * t.cols)
                             : gradient_in(in, t.first, t.rows * t.cols);
  return {whole.data, whole.dtype, t.rows, t.cols};
}

Array ModelOps::parameter(int tensor, std::int64_t size) const {
  if (tensor < 0) return {};
  const ParameterTensor& t = layout_.tensor(tensor);
  return sharding_.unit(t.unit).parameters.part(t.offset, size);
}

Array ModelOps::parameter_gradient(int tensor, std::int64_t size) const {
  return gradient_in(layout_.tensor(tensor).gradient_unit, tensor, size);
}

Array ModelOps::gradient_in(std::int32_t unit, int tensor, std::int64_t size) const {
  const UnitMemory& in = sharding_.unit(unit);
  return (micro_step_ == 0 ? in.first_gradient : in.gradient)
      .part(layout_.tensor(tensor).offset, size);
}

void ModelOps::store_gradient(StreamId stream, Array from, int tensor) {
  const Array to = parameter_gradient(tensor, from.size);
  if (adds(tensor)) {
    device_.accumulate(stream, from, to);
  } else {
    device_.cast(stream, from, to);
  }
}

bool ModelOps::adds(int tensor) const {
  return micro_step_ > 0 && sharding_.sums_in_backward(layout_.tensor(tensor).unit);
}

/// The first row of the table of embeddings that this rank has.
std::int64_t ModelOps::first_row_of(const WeightTensors& table) const {
  return shape_.tp == 1 ? kWholeTable : layout_.tensor(table.first).held.rows.front().begin;
}

// Calls. A comment says what the operands are.

// out: x of the next unit
void ModelOps::embedding(const Op& op, std::int32_t unit) {
  const WeightTensors& t = tensors_of(op, unit);
  const Matrix x = rows(op.out[0], unit);
  device_.embedding_forward(stream_, weight(op, unit), first_row_of(t), batch_.tokens,
                            embedding_scale_, false, x);
  if (t.second < 0 || tensor_rank_ > 0) return;  // one of the ranks adds them
  const Matrix positions(parameter(t.second, model_.max_positions * x.cols).data, dtype_,
                         model_.max_positions, x.cols);
  device_.embedding_forward(stream_, positions, kWholeTable, batch_.positions, 1.0, true, x);
}

// in: gradient of x of the next unit
void ModelOps::embedding_backward(const Op& op, std::int32_t unit) {
  const WeightTensors& t = tensors_of(op, unit);
  const Matrix d_x = rows(op.in[0], unit);
  device_.embedding_backward(stream_, batch_.tokens, d_x, embedding_scale_, layout_.adds_uses(),
                             gradient(op, unit), first_row_of(t), workspace_.scratch());
  if (t.second < 0) return;
  const Array positions = parameter_gradient(t.second, model_.max_positions * d_x.cols);
  device_.embedding_backward(stream_, batch_.positions, d_x, 1.0, false,
                             {positions.data, positions.dtype, model_.max_positions, d_x.cols},
                             kWholeTable, workspace_.scratch());
}

// in and out: packed heads, or their gradient
void ModelOps::rope(const Op& op, std::int32_t unit) {
  device_.rope(stream_, packed(op.in[0], unit), workspace_.rope(), batch_.positions,
               op.phase == Phase::kBackward);
}

std::vector<PackedDocuments> ModelOps::documents() const {
  const std::int32_t* keys = workspace_.first_keys(micro_step_);
  if (!rehearses_ || keys == nullptr) return {batch_.documents};
  std::vector<PackedDocuments> all = {{}, {keys, 0}};
  for (const std::int64_t bound : device_.document_bounds(attention_.batch)) {
    all.push_back({keys, bound});
  }
  all.push_back(batch_.documents);
  return all;
}

// in: packed heads; out: attention, its statistics
void ModelOps::attention(const Op& op, std::int32_t unit) {
  for (const PackedDocuments& documents : this->documents()) {
    device_.attention_forward(stream_, packed(op.in[0], unit), documents, rows(op.out[0], unit),
                              statistics(op.out[1], unit));
  }
}

// in: packed heads, attention, its statistics, gradient of attention; out: gradient of packed heads
void ModelOps::attention_backward(const Op& op, std::int32_t unit) {
  for (const PackedDocuments& documents : this->documents()) {
    device_.attention_backward(stream_, packed(op.in[0], unit), documents, rows(op.in[1], unit),
                               statistics(op.in[2], unit), rows(op.in[3], unit),
                               packed(op.out[0], unit), activations_.at(Tensor::kTemporary, unit),
                               activations_.bytes(Tensor::kTemporary, unit));
  }
}

// in: gate and up; out: their product
void ModelOps::activation(const Op& op, std::int32_t unit) {
  device_.activation_forward(stream_, model_.activation, rows(op.in[0], unit),
                             rows(op.out[0], unit));
}

// in: gradient of the product, gate and up; out: gradient of gate and up
void ModelOps::activation_backward(const Op& op, std::int32_t unit) {
  device_.activation_backward(stream_, model_.activation, rows(op.in[1], unit),
                              rows(op.in[0], unit), rows(op.out[0], unit));
}

// in: x and what is added to the product; out: y
void ModelOps::product(const Op& op, std::int32_t unit) {
  const WeightTensors& t = tensors_of(op, unit);
  const Matrix residual = op.in[1] ? rows(op.in[1], unit) : Matrix();
  Addends addends{residual, parameter(t.bias, t.rows)};
  if (is_row_parallel(op.weight)) {
    if (tensor_rank_ > 0) addends.bias = {};  // one of the ranks adds it
    if (leaves_ > 1) return product_in_leaves(op, unit, addends);
  }
  const Matrix x = rows(op.in[0], unit), y = rows(op.out[0], unit);
  if (Fp8Products* products = fp8(op)) return products->forward(x, weight(op, unit), addends, y);
  device_.linear_forward(stream_, x, weight(op, unit), addends, y);
}

// in: gradient of y; out: gradient of x
void ModelOps::input_gradient(const Op& op, std::int32_t unit) {
  if (!is_row_parallel(op.weight) && leaves_ > 1) return input_gradient_in_leaves(op, unit);
  const Matrix d_y = rows(op.in[0], unit), d_x = rows(op.out[0], unit);
  if (Fp8Products* products = fp8(op)) return products->input_gradient(d_y, weight(op, unit), d_x);
  device_.linear_input_gradient(stream_, d_y, weight(op, unit), d_x);
}

// in: gradient of y, x; out: the gradient's slot, which for native schedules has no place of its
// own. Later chunks of tokens are added.
void ModelOps::weight_gradient(const Op& op, std::int32_t unit) {
  const Matrix d_y = rows(op.in[0], unit), x = rows(op.in[1], unit);
  const bool sums = (chunk_ && chunk_->begin > 0) || adds(tensors_of(op, unit).first);
  if (shares_keys(op)) return shared_weight_gradient(op, unit, d_y, x);
  if (Fp8Products* products = fp8(op))
    return products->weight_gradient(d_y, x, gradient(op, unit), sums);
  device_.linear_weight_gradient(stream_, d_y, x, gradient(op, unit), sums);
}

// in: gradient of y
void ModelOps::bias_gradient(const Op& op, std::int32_t unit) {
  const Matrix d_y = rows(op.in[0], unit);
  const int tensor = tensors_of(op, unit).bias;
  const std::int64_t own = shares_keys(op) ? local_.q_dim() : d_y.cols;
  device_.bias_gradient(stream_, d_y.col_range(0, own), parameter_gradient(tensor, own),
                        adds(tensor), scratch());
  if (!shares_keys(op)) return;
  const Array shared = key_value_gradients(op, unit, false);
  const std::int64_t rest = d_y.cols - own;
  device_.bias_gradient(stream_, d_y.col_range(own, rest), shared.part(shared.size - rest, rest),
                        false, scratch());
}

// in: logits, which become their gradient; out, with tensor ranks: their part of the loss, which
// is then in, too
void ModelOps::loss(const Op& op, std::int32_t unit) {
  if (shape_.tp * leaves_ > 1) return loss_in_parts(op, unit);
  device_.cross_entropy(stream_, rows(op.in[0], unit), batch_.targets + chunk_->begin,
                        model_.logit_softcap, makes_gradients_,
                        workspace_.loss(world_rank_, micro_step_),
                        static_cast<double*>(workspace_.scratch()));
}

std::int64_t ModelOps::chunk_tokens(Bytes logits_bytes) const {
  const std::int64_t row_bytes = bytes_of(device_.logits_dtype(dtype_)) * local_.vocab;
  SHARDWRIGHT_CHECK(logits_bytes >= row_bytes, "{} bytes for rows of {} logits", logits_bytes,
                    local_.vocab);
  return std::min(shape_.tokens, logits_bytes / row_bytes);
}

std::int64_t ModelOps::head_chunks(Bytes logits_bytes) const {
  if (logits_bytes == 0) return 0;  // another stage's
  return ceil_div(shape_.tokens, chunk_tokens(logits_bytes));
}

}  // namespace shardwright::exec
