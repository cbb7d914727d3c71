// SPDX-License-Identifier: Apache-2.0
// What tensor ranks gather and add up.
#include "exec/model_ops.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {

// in: rows of the own tokens, or the own parts of the loss; out: those of all tensor ranks
void ModelOps::gather(const Op& op, std::int32_t unit) {
  Communicator& ranks = *groups_.tensor;
  if (op.in[0].tensor != Tensor::kLossParts) {
    return ranks.all_gather(stream_of(op), flat(rows(op.in[0], unit)), flat(rows(op.out[0], unit)));
  }
  constexpr std::int64_t kNumbers = sizeof(VocabularyPart) / sizeof(float);
  const std::int64_t own = leaves_ * chunk_->size() * kNumbers;
  const Array all{activations_.at(op.in[0], unit), DType::kFp32, own * shape_.tp};
  SHARDWRIGHT_CHECK(all.bytes() <= activations_.bytes(op.in[0], unit), "{} bytes of {}",
                    all.bytes(), name_of(op.in[0].tensor));
  ranks.all_gather(stream_of(op), all.part(own * tensor_rank_, own), all);
}

// in: what this rank adds to rows of all tokens and, past a block, what reached the same place
// around it; out: the sum over ranks, of the own tokens. Without out it is in the place of in.
void ModelOps::reduce(const Op& op, std::int32_t unit) {
  if (op.in[0].tensor == Tensor::kNormGradients) return sum_norm_gradients(op, unit);
  if (op.in[0].tensor == Tensor::kKeyValueGradients) return sum_key_value_gradients(op, unit);
  const StreamId stream = stream_of(op);
  const Array part = flat(rows(op.in[0], unit));
  Array sum = part;
  if (op.kind == OpKind::kReduceScatter) {
    sum = flat(rows(op.out[0], unit));
    groups_.tensor->reduce_scatter(stream, part, sum, false, {}, order_);
  } else {
    groups_.tensor->all_reduce(stream, part, order_);
  }
  if (op.in[1]) device_.accumulate(stream, flat(rows(op.in[1], unit)), sum);
}

void ModelOps::sum_norm_gradients(const Op& op, std::int32_t unit) {
  const StreamId stream = stream_of(op);
  const std::vector<int> norms = partial_norms(unit);
  std::int64_t elements = 0;
  for (const int tensor : norms) elements += layout_.tensor(tensor).size;
  const int any = norms.front();
  const DType dtype = parameter_gradient(any, 1).dtype;
  const Array all{activations_.at(op.in[0], unit), dtype, elements};
  groups_.tensor->all_reduce(stream, all, order_);
  std::int64_t first = 0;
  for (const int tensor : norms) {
    const std::int64_t size = layout_.tensor(tensor).size;
    store_gradient(stream, all.part(first, size), tensor);
    first += size;
  }
}

Array ModelOps::key_value_gradients(const Op& op, std::int32_t unit, bool all) const {
  const WeightTensors& t = tensors_of(op, unit);
  const std::int64_t own = 2 * local_.kv_dim() * (t.cols + (t.bias >= 0 ? 1 : 0));
  const Array whole{activations_.at(Tensor::kKeyValueGradients, unit),
                    parameter_gradient(t.first, 1).dtype, own * model_.kv_heads};
  return all ? whole : whole.part(tensor_rank_ / (shape_.tp / model_.kv_heads) * own, own);
}

// The rows of queries are this rank's alone. Those of keys and values are of its own query heads
// only: other ranks with the same key/value heads make the rest.
void ModelOps::shared_weight_gradient(const Op& op, std::int32_t unit, const Matrix& d_y,
                                      const Matrix& x) {
  const Matrix whole = gradient(op, unit);
  const std::int64_t queries = local_.q_dim(), rest = d_y.cols - queries;
  device_.linear_weight_gradient(stream_, d_y.col_range(0, queries), x, whole.row_range(0, queries),
                                 adds(tensors_of(op, unit).first));
  const Array all = key_value_gradients(op, unit, true);
  device_.zero(stream_, all.data, all.bytes());
  device_.linear_weight_gradient(
      stream_, d_y.col_range(queries, rest), x,
      {key_value_gradients(op, unit, false).data, whole.dtype, rest, whole.cols}, false);
}

// What a rank has not made is zeros, and ranks of a key/value head are neighbours: their sum is
// that of those ranks alone.
void ModelOps::sum_key_value_gradients(const Op& op, std::int32_t unit) {
  const StreamId stream = stream_of(op);
  groups_.tensor->all_reduce(stream, key_value_gradients(op, unit, true), order_);
  const WeightTensors& t = tensors_of(op, unit);
  const Array own = key_value_gradients(op, unit, false);
  const Matrix whole = gradient(op, unit);
  const std::int64_t queries = local_.q_dim(), rest = whole.rows - queries;
  const auto store = [&](const Array& from, const Array& to, int tensor) {
    if (adds(tensor)) {
      device_.accumulate(stream, from, to);
    } else {
      device_.cast(stream, from, to);
    }
  };
  store(own.part(0, rest * whole.cols), flat(whole.row_range(queries, rest)), t.first);
  if (t.bias < 0) return;
  store(own.part(rest * whole.cols, rest),
        parameter_gradient(t.bias, whole.rows).part(queries, rest), t.bias);
}

/// Of the vocabulary, leaf number `leaf` of this rank, counted from the rank's first token.
Slice::Range ModelOps::leaf_vocabulary(std::int32_t unit, std::int64_t leaf) const {
  const auto index = static_cast<std::int16_t>(tensor_rank_ * leaves_ + leaf);
  const auto count = static_cast<std::int16_t>(shape_.tp * leaves_);
  const Slice::Range range = Slice{SliceAlong::kRows, index, count}.of(model_.vocab);
  const std::int64_t first = first_vocab(unit);
  return {range.begin - first, range.end - first};
}

std::int64_t ModelOps::first_vocab(std::int32_t unit) const {
  return layout_.tensor(layout_.weight(Weight::kHead, unit).first).held.rows.front().begin;
}

void ModelOps::loss_in_parts(const Op& op, std::int32_t unit) {
  const bool alone = shape_.tp == 1;
  const Matrix logits = rows(op.in[0], unit);
  const std::int32_t* targets = batch_.targets + chunk_->begin;
  auto* const parts = static_cast<VocabularyPart*>(
      alone ? workspace_.leaves().operand : activations_.at(Tensor::kLossParts, unit));
  const VocabularyParts all{parts, shape_.tp * leaves_, logits.rows};
  const auto of_leaf = [&](std::int64_t leaf) {
    const Slice::Range range = leaf_vocabulary(unit, leaf);
    return std::pair(logits.col_range(range.begin, range.size()), first_vocab(unit) + range.begin);
  };
  const bool merges = op.in[1] || alone;
  for (std::int64_t leaf = 0; leaf < leaves_ && (!op.in[1] || alone); ++leaf) {
    const auto [own, first] = of_leaf(leaf);
    device_.vocabulary_statistics(stream_, own, targets, first, model_.logit_softcap,
                                  parts + (tensor_rank_ * leaves_ + leaf) * logits.rows);
  }
  for (std::int64_t leaf = 0; leaf < leaves_ && merges; ++leaf) {
    const auto [own, first] = of_leaf(leaf);
    const bool counts = tensor_rank_ == 0 && leaf == 0;
    device_.vocabulary_loss(stream_, own, targets, first, model_.logit_softcap, makes_gradients_,
                            all, counts ? workspace_.loss(world_rank_, micro_step_) : nullptr,
                            static_cast<double*>(workspace_.scratch()));
  }
}

}  // namespace shardwright::exec
