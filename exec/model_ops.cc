// SPDX-License-Identifier: Apache-2.0
#include "exec/model_ops.h"

#include <algorithm>
#include <cmath>

#include "kernels/bf16.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {

namespace {

/// Behind attention or the MLP: its weight is the second of the norm before them, and its
/// statistics follow those of that norm.
bool is_post_norm(const Op& op) {
  return op.part >= 2;
}

}  // namespace

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
};

kernels::AttentionShape attention_shape_of(const Model& model, const Plan& plan) {
  const double usual_scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  return {.batch = plan.micro_batch,
          .seq = plan.seq_len,
          .heads = model.heads,
          .kv_heads = model.kv_heads,
          .head_dim = model.head_dim,
          .scale = model.attention_scale != 0 ? model.attention_scale : usual_scale,
          .softcap = model.attention_softcap,
          .alibi = model.position == Position::kAlibi};
}

ModelOps::ModelOps(const Model& model, const Plan& plan, const Sharding& sharding,
                   const Activations& activations, const Workspace& workspace, Device& device,
                   StreamId stream, int world_rank)
    : model_(model),
      sharding_(sharding),
      layout_(sharding.layout()),
      activations_(activations),
      workspace_(workspace),
      device_(device),
      stream_(stream),
      world_rank_(world_rank),
      dtype_(plan.param_dtype),
      tokens_(plan.micro_batch * plan.seq_len),
      packed_cols_(columns_of(Tensor::kQkv, model)),
      attention_(attention_shape_of(model, plan)),
      row_count_(tokens_) {
  if (plan.numerics.precision == Precision::kFp8) {
    fp8_.emplace(plan_fp8_workspace(model, tokens_), workspace.fp8(), plan.numerics.recipe(),
                 device, stream);
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
  return op.kind <= OpKind::kWeightGradient;
}

bool ModelOps::runs_with_head(const Op& op) {
  return op.kind == OpKind::kLoss || op.weight == Weight::kHead;
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
  if (operand.tensor == Tensor::kLogits) {
    return {data, device_.logits_dtype(dtype_), row_count_, model_.vocab};
  }
  const Matrix whole(data, dtype_, tokens_, columns_of(operand.tensor, model_));
  return whole.row_range(first_row_, row_count_);
}

float* ModelOps::statistics(const Operand& operand, std::int32_t unit) const {
  return static_cast<float*>(activations_.at(operand, unit));
}

PackedHeads ModelOps::packed(const Operand& operand, std::int32_t unit) const {
  return {rows(operand, unit), attention_};
}

Heads ModelOps::query_heads(const Matrix& from) const {
  return {from.data, from.dtype, tokens_, model_.heads, model_.head_dim, from.stride};
}

Heads ModelOps::key_heads(const Matrix& from) const {
  void* data =
      from.cols == packed_cols_ ? advance(from.data, from.dtype, model_.q_dim()) : from.data;
  return {data, from.dtype, tokens_, model_.kv_heads, model_.head_dim, from.stride};
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
  const Array whole = parameter_gradient(t.first, t.rows * t.cols);
  return {whole.data, whole.dtype, t.rows, t.cols};
}

Norm ModelOps::norm_of(const Op& op, std::int32_t unit, std::int64_t size) const {
  const WeightTensors& t = tensors_of(op, unit);
  return {model_.norm, parameter(is_post_norm(op) ? t.second : t.first, size).data,
          parameter(t.bias, size).data, layout_.norm_offset(), model_.norm_eps};
}

float* ModelOps::norm_statistics(const Op& op, const Operand& operand, std::int32_t unit) const {
  return statistics(operand, unit) + (is_post_norm(op) ? tokens_ : 0);
}

Norm ModelOps::head_norm_of(int tensor) const {
  return {Normalization::kRmsNorm, parameter(tensor, model_.head_dim).data, nullptr,
          layout_.norm_offset(), model_.norm_eps};
}

Array ModelOps::parameter(int tensor, std::int64_t size) const {
  if (tensor < 0) return {};
  const ParameterTensor& t = layout_.tensor(tensor);
  return sharding_.unit(t.unit).parameters.part(t.offset, size);
}

Array ModelOps::parameter_gradient(int tensor, std::int64_t size) const {
  const ParameterTensor& t = layout_.tensor(tensor);
  const UnitMemory& unit = sharding_.unit(t.unit);
  return (micro_step_ == 0 ? unit.first_gradient : unit.gradient).part(t.offset, size);
}

bool ModelOps::adds(int tensor) const {
  return micro_step_ > 0 && sharding_.sums_in_backward(layout_.tensor(tensor).unit);
}

// Calls. A comment says what the operands are.

// out: x of the next unit
void ModelOps::embedding(const Op& op, std::int32_t unit) {
  const WeightTensors& t = tensors_of(op, unit);
  const Matrix x = rows(op.out[0], unit);
  device_.embedding_forward(stream_, weight(op, unit), kWholeTable, batch_.tokens, embedding_scale_,
                            false, x);
  if (t.second < 0) return;
  const Matrix positions(parameter(t.second, model_.max_positions * x.cols).data, dtype_,
                         model_.max_positions, x.cols);
  device_.embedding_forward(stream_, positions, kWholeTable, batch_.positions, 1.0, true, x);
}

// in: gradient of x of the next unit
void ModelOps::embedding_backward(const Op& op, std::int32_t unit) {
  const WeightTensors& t = tensors_of(op, unit);
  const Matrix d_x = rows(op.in[0], unit);
  device_.embedding_backward(stream_, batch_.tokens, d_x, embedding_scale_, layout_.tied(),
                             gradient(op, unit), kWholeTable, workspace_.scratch());
  if (t.second < 0) return;
  const Array positions = parameter_gradient(t.second, model_.max_positions * d_x.cols);
  device_.embedding_backward(stream_, batch_.positions, d_x, 1.0, false,
                             {positions.data, positions.dtype, model_.max_positions, d_x.cols},
                             kWholeTable, workspace_.scratch());
}

// in: x and, behind attention or MLP, what y is added to; out: y, statistics
void ModelOps::norm(const Op& op, std::int32_t unit) {
  const Matrix x = rows(op.in[0], unit);
  const Matrix y(activations_.at(op.out[0], unit), dtype_, x.rows, x.cols);
  device_.norm_forward(stream_, x, norm_of(op, unit, x.cols), y,
                       norm_statistics(op, op.out[1], unit));
  if (!op.in[1]) return;
  const std::int64_t size = x.rows * x.cols;
  device_.accumulate(stream_, {rows(op.in[1], unit).data, dtype_, size}, {y.data, dtype_, size});
}

// in: gradient of y, statistics, x and, past a block, what reached the same place around it; out:
// gradient of x
void ModelOps::norm_backward(const Op& op, std::int32_t unit) {
  const Matrix x = rows(op.in[2], unit);
  const void* residual = op.in[3] ? activations_.at(op.in[3], unit) : nullptr;
  const WeightTensors& t = tensors_of(op, unit);
  const Matrix d_y = rows(op.in[0], unit);
  if (t.bias >= 0) {
    device_.bias_gradient(stream_, d_y, parameter_gradient(t.bias, x.cols), adds(t.bias),
                          scratch());
  }
  const int tensor = is_post_norm(op) ? t.second : t.first;
  device_.norm_backward(stream_, x, norm_of(op, unit, x.cols), norm_statistics(op, op.in[1], unit),
                        d_y, residual, rows(op.out[0], unit), parameter_gradient(tensor, x.cols),
                        adds(tensor), scratch());
}

// in and out: packed heads; out: query heads and key heads as they were, rstd of both
void ModelOps::head_norms(const Op& op, std::int32_t unit) {
  const WeightTensors& t = tensors_of(op, unit);
  const Matrix qkv = rows(op.in[0], unit);
  const Matrix query = rows(op.out[0], unit);
  const Matrix key = rows(op.out[1], unit);
  device_.copy_rows(stream_, qkv.col_range(0, query.cols), query);
  device_.copy_rows(stream_, qkv.col_range(query.cols, key.cols), key);
  float* rstd = statistics(op.out[2], unit);
  device_.norm_forward(stream_, query_heads(qkv), head_norm_of(t.first), query_heads(qkv), rstd);
  device_.norm_forward(stream_, key_heads(qkv), head_norm_of(t.second), key_heads(qkv),
                       rstd + tokens_ * model_.heads);
}

// in: gradient of packed heads (becomes that before the norm), query heads and key heads as they
// were, rstd of both
void ModelOps::head_norms_backward(const Op& op, std::int32_t unit) {
  const WeightTensors& t = tensors_of(op, unit);
  const std::int64_t d = model_.head_dim;
  const Matrix gradient = rows(op.in[0], unit);
  const float* rstd = statistics(op.in[3], unit);
  device_.norm_backward(stream_, query_heads(rows(op.in[1], unit)), head_norm_of(t.first), rstd,
                        query_heads(gradient), nullptr, query_heads(gradient),
                        parameter_gradient(t.first, d), adds(t.first), scratch());
  device_.norm_backward(stream_, key_heads(rows(op.in[2], unit)), head_norm_of(t.second),
                        rstd + tokens_ * model_.heads, key_heads(gradient), nullptr,
                        key_heads(gradient), parameter_gradient(t.second, d), adds(t.second),
                        scratch());
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
  const Addends addends{residual, parameter(t.bias, t.rows)};
  const Matrix x = rows(op.in[0], unit), y = rows(op.out[0], unit);
  if (Fp8Products* products = fp8(op)) return products->forward(x, weight(op, unit), addends, y);
  device_.linear_forward(stream_, x, weight(op, unit), addends, y);
}

// in: gradient of y; out: gradient of x
void ModelOps::input_gradient(const Op& op, std::int32_t unit) {
  const Matrix d_y = rows(op.in[0], unit), d_x = rows(op.out[0], unit);
  if (Fp8Products* products = fp8(op)) return products->input_gradient(d_y, weight(op, unit), d_x);
  device_.linear_input_gradient(stream_, d_y, weight(op, unit), d_x);
}

// in: gradient of y, x; out: the gradient's slot, which for native schedules has no place of its
// own. Later chunks of tokens are added.
void ModelOps::weight_gradient(const Op& op, std::int32_t unit) {
  const Matrix d_y = rows(op.in[0], unit), x = rows(op.in[1], unit);
  const bool sums = first_row_ > 0 || adds(tensors_of(op, unit).first);
  if (Fp8Products* products = fp8(op))
    return products->weight_gradient(d_y, x, gradient(op, unit), sums);
  device_.linear_weight_gradient(stream_, d_y, x, gradient(op, unit), sums);
}

// in: gradient of y
void ModelOps::bias_gradient(const Op& op, std::int32_t unit) {
  const Matrix d_y = rows(op.in[0], unit);
  const int tensor = tensors_of(op, unit).bias;
  device_.bias_gradient(stream_, d_y, parameter_gradient(tensor, d_y.cols), adds(tensor),
                        scratch());
}

// in: logits, which become their gradient
void ModelOps::loss(const Op& op, std::int32_t unit) {
  device_.cross_entropy(stream_, rows(op.in[0], unit), batch_.targets + first_row_,
                        model_.logit_softcap, makes_gradients_,
                        workspace_.loss(world_rank_, micro_step_),
                        static_cast<double*>(workspace_.scratch()));
}

// The head.

std::int64_t ModelOps::head_chunks(Bytes logits_bytes) const {
  const std::int64_t row_bytes = bytes_of(device_.logits_dtype(dtype_)) * model_.vocab;
  SHARDWRIGHT_CHECK(logits_bytes >= row_bytes, "{} bytes for rows of {} logits", logits_bytes,
                    model_.vocab);
  return ceil_div(tokens_, std::min(tokens_, logits_bytes / row_bytes));
}

void ModelOps::run_head(std::span<const Op> ops, OpId first, std::int32_t unit,
                        Recorder& recorder) {
  const Bytes row_bytes = bytes_of(device_.logits_dtype(dtype_)) * model_.vocab;
  const std::int64_t chunk =
      std::min(tokens_, activations_.bytes(Tensor::kLogits, unit) / row_bytes);
  makes_gradients_ = ops.size() == kHeadOps;
  for (first_row_ = 0; first_row_ < tokens_; first_row_ += chunk) {
    row_count_ = std::min(chunk, tokens_ - first_row_);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const Recorder::Scope scope(recorder, first + static_cast<OpId>(i), stream_);
      run(ops[i], unit);
    }
  }
  first_row_ = 0;
  row_count_ = tokens_;
}

}  // namespace shardwright::exec
