// SPDX-License-Identifier: Apache-2.0
#include "exec/model_ops.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "exec/libraries/rules.h"
#include "kernels/bf16.h"
#include "sim/core/arena.h"
#include "sim/core/base/check.h"
#include "sim/core/units.h"

namespace shardwright::exec {

namespace {

using kernels::Fp8Format;
using kernels::Fp8Matrix;
using kernels::Fp8Scaling;

Fp8Scaling scaling_of(Fp8Recipe recipe) {
  switch (recipe) {
    case Fp8Recipe::kTensorwise:
      return Fp8Scaling::kTensor;
    case Fp8Recipe::kRowwise:
      return Fp8Scaling::kRows;
    case Fp8Recipe::kMxfp8:
      return Fp8Scaling::kBlocks;
    case Fp8Recipe::kDelayed:
    case Fp8Recipe::kBlock:
      break;
  }
  SHARDWRIGHT_CHECK(false, "the executor has no fp8 of recipe {}", name_of(recipe));
  return Fp8Scaling::kTensor;
}

}  // namespace

Fp8Products::Fp8Products(const Fp8Workspace& plan, std::byte* room, Fp8Recipe recipe,
                         Device& device, StreamId stream)
    : device_(device),
      stream_(stream),
      scaling_(scaling_of(recipe)),
      turns_(device.multiplies_turned(scaling_)),
      left_{room, plan.left_bytes},
      right_{room + plan.left_bytes, plan.right_bytes},
      gradient_{room + plan.left_bytes + plan.right_bytes, plan.gradient_bytes} {}

Fp8Matrix Fp8Products::operand(const Place& place, std::int64_t rows, std::int64_t cols,
                               Fp8Format format) const {
  const Bytes codes = round_up(rows * cols, kArenaAlignment);
  SHARDWRIGHT_CHECK(codes + kernels::fp8_scale_bytes(scaling_, rows, cols) <= place.bytes,
                    "an operand of {} x {} in {} bytes", rows, cols, place.bytes);
  return {.codes = reinterpret_cast<std::uint8_t*>(place.data),
          .scales = place.data + codes,
          .rows = rows,
          .cols = cols,
          .format = format,
          .scaling = scaling_};
}

Fp8Format Fp8Products::gradient_format() const {
  return scaling_ == Fp8Scaling::kTensor ? Fp8Format::kE5M2 : Fp8Format::kE4M3;
}

void Fp8Products::forward(Matrix x, Matrix w, const Addends& addends, Matrix y) {
  const Fp8Matrix left = operand(left_, x.rows, x.cols, Fp8Format::kE4M3);
  const Fp8Matrix right = operand(right_, w.rows, w.cols, Fp8Format::kE4M3);
  device_.quantize(stream_, x, left, {});
  device_.quantize(stream_, w, right, {});
  device_.fp8_product(stream_, left, right, addends, y);
}

Fp8Matrix Fp8Products::turned(Fp8Matrix rows) {
  std::swap(rows.rows, rows.cols);
  rows.turned = true;
  return rows;
}

void Fp8Products::input_gradient(Matrix d_y, Matrix w, Matrix d_x) {
  if (turns_) {
    const Fp8Matrix left = operand(gradient_, d_y.rows, d_y.cols, gradient_format());
    const Fp8Matrix right = operand(right_, w.rows, w.cols, Fp8Format::kE4M3);
    device_.quantize(stream_, d_y, left, {});
    device_.quantize(stream_, w, right, {});
    device_.fp8_product(stream_, left, turned(right), {}, d_x);
  } else {
    const Fp8Matrix left = operand(left_, d_y.rows, d_y.cols, gradient_format());
    const Fp8Matrix right = operand(right_, w.cols, w.rows, Fp8Format::kE4M3);
    device_.quantize(stream_, d_y, left, operand(gradient_, d_y.cols, d_y.rows, gradient_format()));
    device_.quantize(stream_, w, {}, right);
    device_.fp8_product(stream_, left, right, {}, d_x);
  }
  quantized_gradient_ = d_y.data;
}

void Fp8Products::weight_gradient(Matrix d_y, Matrix x, Matrix d_w, bool adds) {
  const bool is_made = quantized_gradient_ == d_y.data;
  const Addends addends{adds ? d_w : Matrix(), {}};
  if (turns_) {
    const Fp8Matrix left = operand(gradient_, d_y.rows, d_y.cols, gradient_format());
    const Fp8Matrix right = operand(right_, x.rows, x.cols, Fp8Format::kE4M3);
    if (!is_made) device_.quantize(stream_, d_y, left, {});
    device_.quantize(stream_, x, right, {});
    device_.fp8_product(stream_, turned(left), turned(right), addends, d_w);
  } else {
    const Fp8Matrix left = operand(gradient_, d_y.cols, d_y.rows, gradient_format());
    const Fp8Matrix right = operand(right_, x.cols, x.rows, Fp8Format::kE4M3);
    if (!is_made) device_.quantize(stream_, d_y, {}, left);
    device_.quantize(stream_, x, {}, right);
    device_.fp8_product(stream_, left, right, addends, d_w);
  }
}

std::string why_no_fp8(std::string_view gpu, int compute_major, int compute_minor,
                       Fp8Recipe recipe) {
  const int capability = 10 * compute_major + compute_minor;
  const std::string has =
      fmt::format("{} has compute capability {}.{}", gpu, compute_major, compute_minor);
  if (capability < 89) {
    return fmt::format(
        "precision is fp8, but {} and no tensor cores for it, expected 8.9 or newer or precision "
        "bf16",
        has);
  }
  if (recipe == Fp8Recipe::kRowwise &&
      capability != libraries::rule_number("cublas_lt.rowwise", "compute_capability")) {
    return fmt::format(
        "fp8_recipe is rowwise, but {} and cuBLASLt scales rows on 9.0 (H100, H200) only, expected "
        "tensorwise{}",
        has, capability >= 100 ? " or mxfp8" : "");
  }
  if (recipe == Fp8Recipe::kMxfp8 && capability < 100) {
    return fmt::format("fp8_recipe is mxfp8, but {}, expected 10.0 or newer or tensorwise{}", has,
                       capability == 90 ? " or rowwise" : "");
  }
  return "";
}

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

// Sums that tensor ranks share, on a rank that has several leaves of them: each is made as a rank
// of its own would make it.

void ModelOps::fold_leaves(Array from, std::int64_t leaves, Array out) {
  std::vector<const void*> inputs;
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf)
    inputs.push_back(from.part(leaf * out.size, out.size).data);
  device_.fold(stream_, inputs, from.dtype, out, false, order_);
}

// Of a product whose input's columns tensor ranks share.
void ModelOps::product_in_leaves(const Op& op, std::int32_t unit, const Addends& addends) {
  const Matrix x = rows(op.in[0], unit), y = rows(op.out[0], unit), w = weight(op, unit);
  const std::int64_t cols = x.cols / leaves_;
  const Array parts{workspace_.leaves().partial, y.dtype, leaves_ * y.rows * y.cols};
  for (std::int64_t leaf = 0; leaf < leaves_; ++leaf) {
    const Addends own{{}, leaf == 0 ? addends.bias : Array{}};
    const Matrix part(parts.part(leaf * y.rows * y.cols, 0).data, y.dtype, y.rows, y.cols);
    device_.linear_forward(stream_, x.col_range(leaf * cols, cols), w.col_range(leaf * cols, cols),
                           own, part);
  }
  fold_leaves(parts, leaves_, flat(y));
  if (addends.matrix.data != nullptr) device_.accumulate(stream_, flat(addends.matrix), flat(y));
}

// Of one whose output's columns they share.
void ModelOps::input_gradient_in_leaves(const Op& op, std::int32_t unit) {
  const Matrix d_y = rows(op.in[0], unit), d_x = rows(op.out[0], unit), w = weight(op, unit);
  const std::int64_t size = d_x.rows * d_x.cols;
  const Array parts{workspace_.leaves().partial, d_x.dtype, leaves_ * size};
  for (std::int64_t leaf = 0; leaf < leaves_; ++leaf) {
    const std::vector<Slice::Range> ranges = leaf_rows(op, unit, leaf);
    Matrix d_part = d_y.col_range(ranges.front().begin, ranges.front().size());
    Matrix w_part = w.row_range(ranges.front().begin, ranges.front().size());
    if (ranges.size() > 1) {
      // A tensor rank has them side by side.
      std::int64_t cols = 0;
      for (const Slice::Range& range : ranges) cols += range.size();
      void* const operand = workspace_.leaves().operand;
      d_part = Matrix(operand, d_y.dtype, d_y.rows, cols);
      w_part = Matrix(advance(operand, d_y.dtype, d_y.rows * cols), w.dtype, cols, w.cols);
      std::int64_t at = 0;
      for (const Slice::Range& range : ranges) {
        const std::int64_t count = range.size();
        device_.copy_rows(stream_, d_y.col_range(range.begin, count), d_part.col_range(at, count));
        device_.copy_rows(stream_, w.row_range(range.begin, count), w_part.row_range(at, count));
        at += count;
      }
    }
    device_.linear_input_gradient(stream_, d_part, w_part,
                                  {parts.part(leaf * size, 0).data, d_x.dtype, d_x.rows, d_x.cols});
  }
  fold_leaves(parts, leaves_, flat(d_x));
}

std::vector<Slice::Range> ModelOps::leaf_rows(const Op& op, std::int32_t unit,
                                              std::int64_t leaf) const {
  if (op.weight == Weight::kHead) return {leaf_vocabulary(unit, leaf)};
  std::vector<std::int64_t> parts = {local_.ffn};
  if (op.weight == Weight::kGateUp) parts = {local_.ffn, local_.ffn};
  if (op.weight == Weight::kQkv) parts = {local_.q_dim(), local_.kv_dim(), local_.kv_dim()};
  std::vector<Slice::Range> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t rows : parts) {
    const std::int64_t count = rows / leaves_;
    ranges.push_back({begin + leaf * count, begin + (leaf + 1) * count});
    begin += rows;
  }
  return ranges;
}

// Norms and the gradients of their weights, which a tensor rank makes from its own tokens or heads.

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

// What tensor ranks gather and add up.

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
