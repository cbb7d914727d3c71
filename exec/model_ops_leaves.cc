// SPDX-License-Identifier: Apache-2.0
// Sums that tensor ranks share, on a rank that has several leaves of them: each is made as a rank
// of its own would make it.
#include "exec/model_ops.h"

namespace shardwright::exec {

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

}  // namespace shardwright::exec
