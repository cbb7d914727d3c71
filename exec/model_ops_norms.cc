// SPDX-License-Identifier: Apache-2.0
// Norms and the gradients of their weights, which a tensor rank makes from its own tokens or heads.
#include <algorithm>

#include "exec/model_ops.h"

namespace shardwright::exec {

namespace {

/// Behind attention or the MLP: its weight is the second of the norm before them, and its
/// statistics follow those of that norm.
bool is_post_norm(const Op& op) {
  return op.part >= 2;
}

bool writes(const Op& op, Tensor tensor) {
  return std::find(std::begin(op.out), std::end(op.out), Operand(tensor)) != std::end(op.out);
}

}  // namespace

Norm ModelOps::norm_of(const Op& op, std::int32_t unit, std::int64_t size) const {
  const WeightTensors& t = tensors_of(op, unit);
  return {model_.norm, parameter(is_post_norm(op) ? t.second : t.first, size).data,
          parameter(t.bias, size).data, layout_.norm_offset(), model_.norm_eps};
}

float* ModelOps::norm_statistics(const Op& op, const Operand& operand, std::int32_t unit) const {
  return statistics(operand, unit) + (is_post_norm(op) ? shape_.sharded_tokens : 0);
}

Norm ModelOps::head_norm_of(int tensor) const {
  return {Normalization::kRmsNorm, parameter(tensor, model_.head_dim).data, nullptr,
          layout_.norm_offset(), model_.norm_eps};
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
                       rstd + shape_.tokens * local_.heads);
}

std::vector<int> ModelOps::partial_norms(std::int32_t unit) const {
  std::vector<int> norms = layout_.norms(unit);
  const WeightTensors& heads = layout_.weight(Weight::kQkNorm, unit);
  std::erase_if(norms, [&](int tensor) {
    return !shape_.sequence_parallel && tensor != heads.first && tensor != heads.second;
  });
  return norms;
}

template <class Make>
void ModelOps::norm_gradient(const Op& op, std::int32_t unit, int tensor, std::int64_t leaves,
                             const Make& make) {
  const std::int64_t size = layout_.tensor(tensor).size;
  const Array gradient = parameter_gradient(tensor, size);
  const bool is_part = writes(op, Tensor::kNormGradients);
  Array to = gradient;
  if (is_part) {
    std::int64_t before = 0;
    for (const int other : partial_norms(unit)) {
      if (other == tensor) break;
      before += layout_.tensor(other).size;
    }
    to = Array{activations_.at(Tensor::kNormGradients, unit), gradient.dtype, before + size}.part(
        before, size);
  }
  if (leaves == 1) return make(0, to, !is_part && adds(tensor));
  const Array made{workspace_.leaves().partial, gradient.dtype, (leaves + 1) * size};
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf)
    make(leaf, made.part(leaf * size, size), false);
  if (is_part) return fold_leaves(made, leaves, to);
  const Array sum = made.part(leaves * size, size);
  fold_leaves(made, leaves, sum);
  store_gradient(stream_, sum, tensor);
}

// in: gradient of y, statistics, x and, past a block, what reached the same place around it; out:
// gradient of x and, where tensor ranks add it up, what this one makes of the norm's
void ModelOps::norm_backward(const Op& op, std::int32_t unit) {
  const Matrix x = rows(op.in[2], unit), d_y = rows(op.in[0], unit), d_x = rows(op.out[0], unit);
  const Matrix residual = op.in[3] ? rows(op.in[3], unit) : Matrix();
  const WeightTensors& t = tensors_of(op, unit);
  // Without sequence parallelism every rank has all tokens, of which the last leaves may have
  // fewer.
  const std::int64_t leaves = shape_.sequence_parallel ? leaves_ : leaves_ * shape_.tp;
  const auto range_of = [&](std::int64_t leaf) {
    return Slice{SliceAlong::kRows, static_cast<std::int16_t>(leaf),
                 static_cast<std::int16_t>(leaves)}
        .of(x.rows);
  };
  const auto part = [&](const Matrix& whole, std::int64_t leaf) {
    const Slice::Range range = range_of(leaf);
    return whole.row_range(range.begin, range.size());
  };
  if (t.bias >= 0) {
    norm_gradient(op, unit, t.bias, leaves, [&](std::int64_t leaf, Array to, bool adds) {
      if (range_of(leaf).size() == 0) return device_.zero(stream_, to.data, to.bytes());
      device_.bias_gradient(stream_, part(d_y, leaf), to, adds, scratch());
    });
  }
  const Norm norm = norm_of(op, unit, x.cols);
  float* const saved = norm_statistics(op, op.in[1], unit);
  const int tensor = is_post_norm(op) ? t.second : t.first;
  norm_gradient(op, unit, tensor, leaves, [&](std::int64_t leaf, Array to, bool adds) {
    const Slice::Range range = range_of(leaf);
    if (range.size() == 0) return device_.zero(stream_, to.data, to.bytes());
    const float* statistics = saved;
    if (leaves > 1) {
      // Deviations of all tokens lie before their means.
      const bool has_means = model_.norm == Normalization::kLayerNorm;
      const Matrix kinds(saved, DType::kFp32, has_means ? 2 : 1, x.rows);
      statistics = copied_statistics(kinds.col_range(range.begin, range.size()));
    }
    const void* added = residual.data != nullptr ? part(residual, leaf).data : nullptr;
    device_.norm_backward(stream_, part(x, leaf), norm, statistics, part(d_y, leaf), added,
                          part(d_x, leaf), to, adds, scratch());
  });
}

// in: gradient of packed heads (becomes that before the norm), query heads and key heads as they
// were, rstd of both; out: as of norm_backward
void ModelOps::head_norms_backward(const Op& op, std::int32_t unit) {
  const WeightTensors& t = tensors_of(op, unit);
  const Matrix gradient = rows(op.in[0], unit);
  float* const rstd = statistics(op.in[3], unit);
  const auto backward = [&](int tensor, const Heads& x, const Heads& d_x, float* saved) {
    const std::int64_t count = x.heads / leaves_;
    const auto part = [count](const Heads& all, std::int64_t leaf) {
      void* data = advance(all.data, all.dtype, leaf * count * all.size);
      return Heads(data, all.dtype, all.tokens, count, all.size, all.stride);
    };
    norm_gradient(op, unit, tensor, leaves_, [&](std::int64_t leaf, Array to, bool adds) {
      const float* statistics = saved;
      if (leaves_ > 1) {
        const Matrix of_heads(saved, DType::kFp32, x.tokens, x.heads);
        statistics = copied_statistics(of_heads.col_range(leaf * count, count));
      }
      device_.norm_backward(stream_, part(x, leaf), head_norm_of(tensor), statistics,
                            part(d_x, leaf), nullptr, part(d_x, leaf), to, adds, scratch());
    });
  };
  backward(t.first, query_heads(rows(op.in[1], unit)), query_heads(gradient), rstd);
  backward(t.second, key_heads(rows(op.in[2], unit)), key_heads(gradient),
           rstd + shape_.tokens * local_.heads);
}

const float* ModelOps::copied_statistics(const Matrix& of) {
  const Matrix copy(workspace_.leaves().operand, DType::kFp32, of.rows, of.cols);
  device_.copy_rows(stream_, of, copy);
  return static_cast<const float*>(copy.data);
}

}  // namespace shardwright::exec
