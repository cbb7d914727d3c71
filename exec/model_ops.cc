// SPDX-License-Identifier: Apache-2.0
#include "exec/model_ops.h"

#include <algorithm>
#include <cmath>

#include "sim/core/check.h"

namespace shardwright::exec {

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
      packed_cols_(model.q_dim() + 2 * model.kv_dim()),
      gate_up_rows_((model.gated_mlp ? 2 : 1) * model.ffn) {
  attention_.batch = plan.micro_batch;
  attention_.seq = plan.seq_len;
  attention_.heads = model.heads;
  attention_.kv_heads = model.kv_heads;
  attention_.head_dim = model.head_dim;
  attention_.scale = model.attention_scale != 0
                         ? model.attention_scale
                         : 1.0 / std::sqrt(static_cast<double>(model.head_dim));
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
  return op.kind == OpKind::kLoss || op.of == OpKind::kHeadProjection;
}

// Views.

Matrix ModelOps::activation(Tensor tensor, std::int32_t unit, std::int64_t cols) const {
  return {activations_.at(tensor, unit), dtype_, tokens_, cols};
}

float* ModelOps::statistics(Tensor tensor, std::int32_t unit) const {
  return static_cast<float*>(activations_.at(tensor, unit));
}

PackedHeads ModelOps::packed(Tensor tensor, std::int32_t unit) const {
  return {activation(tensor, unit, packed_cols_), attention_};
}

Heads ModelOps::query_heads(const Matrix& from) const {
  return {from.data, from.dtype, tokens_, model_.heads, model_.head_dim, from.stride};
}

Heads ModelOps::key_heads(const Matrix& from) const {
  void* data =
      from.cols == packed_cols_ ? advance(from.data, from.dtype, model_.q_dim()) : from.data;
  return {data, from.dtype, tokens_, model_.kv_heads, model_.head_dim, from.stride};
}

Matrix ModelOps::weight(int tensor, std::int64_t rows, std::int64_t cols) const {
  return {vector(tensor, rows * cols).data, dtype_, rows, cols};
}

Matrix ModelOps::weight_gradient_of(int tensor, std::int64_t rows, std::int64_t cols) const {
  const Array whole = vector_gradient(tensor, rows * cols);
  return {whole.data, whole.dtype, rows, cols};
}

Array ModelOps::vector(int tensor, std::int64_t size) const {
  const ParameterTensor& t = layout_.tensor(tensor);
  return sharding_.unit(t.unit).parameters.part(t.offset, size);
}

Array ModelOps::vector_gradient(int tensor, std::int64_t size) const {
  const ParameterTensor& t = layout_.tensor(tensor);
  const UnitMemory& unit = sharding_.unit(t.unit);
  return (micro_step_ == 0 ? unit.first_gradient : unit.gradient).part(t.offset, size);
}

Array ModelOps::bias(int tensor, std::int64_t size) const {
  return tensor >= 0 ? vector(tensor, size) : Array{};
}

// Operations.

void ModelOps::run(const Op& op, std::int32_t unit) {
  switch (op.phase) {
    case Phase::kForward:
    case Phase::kRecompute:
      return forward(op, unit);
    default:
      return backward(op, unit);
  }
}

void ModelOps::forward(const Op& op, std::int32_t unit) {
  const std::int64_t c = model_.hidden;
  switch (op.kind) {
    case OpKind::kEmbedding:
      return device_.embedding_forward(stream_, weight(layout_.embedding(), model_.vocab, c),
                                       batch_.tokens, activation(Tensor::kX, unit + 1, c));
    case OpKind::kNorm: {
      const bool second = op.part == 1;
      const int norm = unit == layout_.head_unit() ? layout_.final_norm()
                       : second                    ? layer(unit).norm2
                                                   : layer(unit).norm1;
      return device_.norm_forward(
          stream_, activation(second ? Tensor::kXMid : Tensor::kX, unit, c), vector(norm, c).data,
          model_.norm_eps, activation(second ? Tensor::kNorm2Out : Tensor::kNorm1Out, unit, c),
          statistics(second ? Tensor::kNorm2Statistics : Tensor::kNorm1Statistics, unit));
    }
    case OpKind::kQkvProjection: {
      return device_.linear_forward(stream_, activation(Tensor::kNorm1Out, unit, c),
                                    weight(layer(unit).qkv, packed_cols_, c),
                                    {{}, bias(layer(unit).qkv_bias, packed_cols_)},
                                    activation(Tensor::kQkv, unit, packed_cols_));
    }
    case OpKind::kQkNorm: {
      const Matrix qkv = activation(Tensor::kQkv, unit, packed_cols_);
      const Matrix query = activation(Tensor::kQueryRaw, unit, model_.q_dim());
      const Matrix key = activation(Tensor::kKeyRaw, unit, model_.kv_dim());
      device_.copy_rows(stream_, qkv.col_range(0, query.cols), query);
      device_.copy_rows(stream_, qkv.col_range(query.cols, key.cols), key);
      float* rstd = statistics(Tensor::kQkNormStatistics, unit);
      device_.norm_forward(stream_, query_heads(qkv),
                           vector(layer(unit).query_norm, model_.head_dim).data, model_.norm_eps,
                           query_heads(qkv), rstd);
      return device_.norm_forward(stream_, key_heads(qkv),
                                  vector(layer(unit).key_norm, model_.head_dim).data,
                                  model_.norm_eps, key_heads(qkv), rstd + tokens_ * model_.heads);
    }
    case OpKind::kRope:
      return device_.rope(stream_, packed(Tensor::kQkv, unit), workspace_.rope(), batch_.positions,
                          false);
    case OpKind::kAttention:
      return device_.attention_forward(stream_, packed(Tensor::kQkv, unit), batch_.first_keys,
                                       activation(Tensor::kAttentionOut, unit, model_.q_dim()),
                                       statistics(Tensor::kAttentionStatistics, unit));
    case OpKind::kOutputProjection: {
      return device_.linear_forward(
          stream_, activation(Tensor::kAttentionOut, unit, model_.q_dim()),
          weight(layer(unit).output, c, model_.q_dim()),
          {activation(Tensor::kX, unit, c), bias(layer(unit).output_bias, c)},
          activation(Tensor::kXMid, unit, c));
    }
    case OpKind::kGateUpProjection:
    case OpKind::kUpProjection: {
      const Tensor to = op.kind == OpKind::kUpProjection ? Tensor::kUp : Tensor::kGateUp;
      return device_.linear_forward(stream_, activation(Tensor::kNorm2Out, unit, c),
                                    weight(layer(unit).gate_up, gate_up_rows_, c),
                                    {{}, bias(layer(unit).gate_up_bias, gate_up_rows_)},
                                    activation(to, unit, gate_up_rows_));
    }
    case OpKind::kActivation:
      return device_.activation_forward(
          stream_, model_.activation,
          activation(model_.gated_mlp ? Tensor::kGateUp : Tensor::kUp, unit, gate_up_rows_),
          activation(Tensor::kActivationOut, unit, model_.ffn));
    case OpKind::kDownProjection: {
      return device_.linear_forward(
          stream_, activation(Tensor::kActivationOut, unit, model_.ffn),
          weight(layer(unit).down, c, model_.ffn),
          {activation(Tensor::kXMid, unit, c), bias(layer(unit).down_bias, c)},
          activation(Tensor::kX, unit + 1, c));
    }
    default:
      SHARDWRIGHT_CHECK(false, "the executor has no forward {}", name_of(op.kind));
  }
}

void ModelOps::backward(const Op& op, std::int32_t unit) {
  const std::int64_t c = model_.hidden;
  switch (op.kind) {
    case OpKind::kEmbedding: {
      const Matrix gradient = weight_gradient_of(layout_.embedding(), model_.vocab, c);
      return device_.embedding_backward(stream_, batch_.tokens,
                                        activation(Tensor::kDX, unit + 1, c), gradient,
                                        layout_.tied(), workspace_.scratch());
    }
    case OpKind::kNorm:
      return norm_backward(op, unit);
    case OpKind::kInputGradient:
      return input_gradient(op, unit);
    case OpKind::kWeightGradient:
      return weight_gradient(op, unit);
    case OpKind::kAccumulate:
      return bias_gradient(op, unit);
    case OpKind::kActivation:
      return device_.activation_backward(
          stream_, model_.activation,
          activation(model_.gated_mlp ? Tensor::kGateUp : Tensor::kUp, unit, gate_up_rows_),
          activation(Tensor::kDActivation, unit, model_.ffn),
          activation(Tensor::kDGateUp, unit, gate_up_rows_));
    case OpKind::kAttention:
      return device_.attention_backward(
          stream_, packed(Tensor::kQkv, unit), batch_.first_keys,
          activation(Tensor::kAttentionOut, unit, model_.q_dim()),
          statistics(Tensor::kAttentionStatistics, unit),
          activation(Tensor::kDAttention, unit, model_.q_dim()), packed(Tensor::kDQkv, unit),
          activations_.at(Tensor::kTemporary, unit), activations_.bytes(Tensor::kTemporary, unit));
    case OpKind::kRope:
      return device_.rope(stream_, packed(Tensor::kDQkv, unit), workspace_.rope(), batch_.positions,
                          true);
    case OpKind::kQkNorm: {
      const Matrix gradient = activation(Tensor::kDQkv, unit, packed_cols_);
      const Matrix query = activation(Tensor::kQueryRaw, unit, model_.q_dim());
      const Matrix key = activation(Tensor::kKeyRaw, unit, model_.kv_dim());
      const std::int64_t d = model_.head_dim;
      const LayerTensors& t = layer(unit);
      const float* rstd = statistics(Tensor::kQkNormStatistics, unit);
      device_.norm_backward(stream_, query_heads(query), vector(t.query_norm, d).data, rstd,
                            query_heads(gradient), nullptr, query_heads(gradient),
                            vector_gradient(t.query_norm, d), scratch());
      return device_.norm_backward(stream_, key_heads(key), vector(t.key_norm, d).data,
                                   rstd + tokens_ * model_.heads, key_heads(gradient), nullptr,
                                   key_heads(gradient), vector_gradient(t.key_norm, d), scratch());
    }
    default:
      SHARDWRIGHT_CHECK(false, "the executor has no backward {}", name_of(op.kind));
  }
}

void ModelOps::norm_backward(const Op& op, std::int32_t unit) {
  const std::int64_t c = model_.hidden;
  const bool is_head = unit == layout_.head_unit();
  const bool second = op.part == 1;
  const int norm = is_head ? layout_.final_norm() : second ? layer(unit).norm2 : layer(unit).norm1;
  // What reached the same place past the block.
  const void* residual = is_head  ? nullptr
                         : second ? activations_.at(Tensor::kDX, unit + 1)
                                  : activations_.at(Tensor::kDXMid, unit);
  device_.norm_backward(
      stream_, activation(second ? Tensor::kXMid : Tensor::kX, unit, c), vector(norm, c).data,
      statistics(second ? Tensor::kNorm2Statistics : Tensor::kNorm1Statistics, unit),
      activation(second ? Tensor::kDNorm2 : Tensor::kDNorm1, unit, c), residual,
      activation(second ? Tensor::kDXMid : Tensor::kDX, unit, c), vector_gradient(norm, c),
      scratch());
}

void ModelOps::input_gradient(const Op& op, std::int32_t unit) {
  const std::int64_t c = model_.hidden;
  const LayerTensors& t = layer(unit);
  switch (op.of) {
    case OpKind::kDownProjection:
      return device_.linear_input_gradient(stream_, activation(Tensor::kDX, unit + 1, c),
                                           weight(t.down, c, model_.ffn),
                                           activation(Tensor::kDActivation, unit, model_.ffn));
    case OpKind::kGateUpProjection:
    case OpKind::kUpProjection:
      return device_.linear_input_gradient(
          stream_, activation(Tensor::kDGateUp, unit, gate_up_rows_),
          weight(t.gate_up, gate_up_rows_, c), activation(Tensor::kDNorm2, unit, c));
    case OpKind::kOutputProjection:
      return device_.linear_input_gradient(stream_, activation(Tensor::kDXMid, unit, c),
                                           weight(t.output, c, model_.q_dim()),
                                           activation(Tensor::kDAttention, unit, model_.q_dim()));
    case OpKind::kQkvProjection:
      return device_.linear_input_gradient(stream_, activation(Tensor::kDQkv, unit, packed_cols_),
                                           weight(t.qkv, packed_cols_, c),
                                           activation(Tensor::kDNorm1, unit, c));
    default:
      SHARDWRIGHT_CHECK(false, "the executor has no input gradient of {}", name_of(op.of));
  }
}

void ModelOps::weight_gradient(const Op& op, std::int32_t unit) {
  const std::int64_t c = model_.hidden;
  const LayerTensors& t = layer(unit);
  const auto product = [&](const Matrix& d_y, const Matrix& x, int tensor) {
    device_.linear_weight_gradient(stream_, d_y, x, weight_gradient_of(tensor, d_y.cols, x.cols),
                                   false);
  };
  switch (op.of) {
    case OpKind::kDownProjection:
      return product(activation(Tensor::kDX, unit + 1, c),
                     activation(Tensor::kActivationOut, unit, model_.ffn), t.down);
    case OpKind::kGateUpProjection:
    case OpKind::kUpProjection:
      return product(activation(Tensor::kDGateUp, unit, gate_up_rows_),
                     activation(Tensor::kNorm2Out, unit, c), t.gate_up);
    case OpKind::kOutputProjection:
      return product(activation(Tensor::kDXMid, unit, c),
                     activation(Tensor::kAttentionOut, unit, model_.q_dim()), t.output);
    case OpKind::kQkvProjection:
      return product(activation(Tensor::kDQkv, unit, packed_cols_),
                     activation(Tensor::kNorm1Out, unit, c), t.qkv);
    default:
      SHARDWRIGHT_CHECK(false, "the executor has no weight gradient of {}", name_of(op.of));
  }
}

void ModelOps::bias_gradient(const Op& op, std::int32_t unit) {
  const LayerTensors& t = layer(unit);
  const auto sum = [&](const Matrix& d_y, int tensor) {
    device_.bias_gradient(stream_, d_y, vector_gradient(tensor, d_y.cols), scratch());
  };
  switch (op.of) {
    case OpKind::kDownProjection:
      return sum(activation(Tensor::kDX, unit + 1, model_.hidden), t.down_bias);
    case OpKind::kGateUpProjection:
    case OpKind::kUpProjection:
      return sum(activation(Tensor::kDGateUp, unit, gate_up_rows_), t.gate_up_bias);
    case OpKind::kOutputProjection:
      return sum(activation(Tensor::kDXMid, unit, model_.hidden), t.output_bias);
    case OpKind::kQkvProjection:
      return sum(activation(Tensor::kDQkv, unit, packed_cols_), t.qkv_bias);
    default:
      SHARDWRIGHT_CHECK(false, "the executor has no bias gradient of {}", name_of(op.of));
  }
}

std::int64_t ModelOps::head_chunks(Bytes logits_bytes) const {
  const std::int64_t row_bytes = bytes_of(device_.logits_dtype(dtype_)) * model_.vocab;
  SHARDWRIGHT_CHECK(logits_bytes >= row_bytes, "{} bytes for rows of {} logits", logits_bytes,
                    model_.vocab);
  return ceil_div(tokens_, std::min(tokens_, logits_bytes / row_bytes));
}

void ModelOps::run_head(OpId first, std::int32_t unit, Recorder& recorder, bool gradients) {
  const std::int64_t c = model_.hidden;
  const DType logits_dtype = device_.logits_dtype(dtype_);
  const Bytes logits_bytes = activations_.bytes(Tensor::kLogits, unit);
  const std::int64_t rows =
      std::min(tokens_, logits_bytes / (bytes_of(logits_dtype) * model_.vocab));
  const Matrix w = weight(layout_.head(), model_.vocab, c);
  const Matrix hidden = activation(Tensor::kNorm1Out, unit, c);
  for (std::int64_t begin = 0; begin < tokens_; begin += rows) {
    const std::int64_t count = std::min(rows, tokens_ - begin);
    const Matrix x = hidden.row_range(begin, count);
    const Matrix logits(activations_.at(Tensor::kLogits, unit), logits_dtype, count, model_.vocab);
    {
      const Recorder::Scope scope(recorder, first, stream_);
      device_.linear_forward(stream_, x, w, {}, logits);
    }
    {
      const Recorder::Scope scope(recorder, first + 1, stream_);
      device_.cross_entropy(stream_, logits, batch_.targets + begin, gradients,
                            workspace_.loss(world_rank_, micro_step_),
                            static_cast<double*>(workspace_.scratch()));
    }
    if (!gradients) continue;
    {
      const Recorder::Scope scope(recorder, first + 2, stream_);
      device_.linear_input_gradient(stream_, logits, w,
                                    activation(Tensor::kDNorm1, unit, c).row_range(begin, count));
    }
    const Recorder::Scope scope(recorder, first + 3, stream_);
    device_.linear_weight_gradient(stream_, logits, x,
                                   weight_gradient_of(layout_.head(), model_.vocab, c), begin > 0);
  }
}

}  // namespace shardwright::exec
