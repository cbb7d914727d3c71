// SPDX-License-Identifier: Apache-2.0
// Products that tensor ranks share: what is gathered before a column-parallel one, summed behind a
// row-parallel one, and both ways backward.
#include <algorithm>
#include <iterator>

#include "sim/program/low_precision.h"
#include "sim/program/program_writer.h"
#include "sim/program/real.h"

namespace shardwright::sim {

using enum Tensor;

void ProgramWriter::copy_parts(Ops& list, OpKind kind, Operand of) const {
  if (copies_parts_)
    list.push_back(memory(kind, 2 * gathered_bytes(), 1, stack_.copies.copy, {of}));
}

Overlap ProgramWriter::gathers() const {
  const bool scales_of_rows = fp8_scaled(plan_, Fp8Recipe::kRowwise);
  const bool fused = overlap_ != TensorOverlap::kNone && !(matches_async_ && scales_of_rows);
  return fused ? Overlap::kInside : Overlap::kNone;
}

void ProgramWriter::gather_before(Ops& list, Op product, Operand from, Operand to,
                                  Overlap overlap) const {
  if (shape_.sequence_parallel) {
    Op gather = collective(CommGroup::kTensor, Collective::kAllGather, gathered_bytes(), overlap);
    add_input(gather, from);
    add_output(gather, to);
    if (overlap == Overlap::kInside) {
      product.collective = gather.collective;
      std::replace(std::begin(product.in), std::end(product.in), to, from);
      add_output(product, to);
    } else {
      list.push_back(gather);
      copy_parts(list, OpKind::kCopyOut, to);
    }
  }
  list.push_back(product);
}

Op ProgramWriter::reduction(Operand from, Operand to, Overlap overlap) const {
  Op reduce =
      collective(CommGroup::kTensor,
                 shape_.sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce,
                 gathered_bytes(), overlap);
  add_input(reduce, from);
  if (to != from) add_output(reduce, to);
  return reduce;
}

void ProgramWriter::row_forward(Ops& list, const Product& product) const {
  reduce_after(list, product_forward(product));
}

void ProgramWriter::reduce_after(Ops& list, Op op) const {
  if (shape_.tp == 1) {
    list.push_back(op);
    return;
  }
  if (overlap_ != TensorOverlap::kNone) {
    op.collective = reduction({}, {}, Overlap::kInside).collective;
    // What came from every rank is read, its sum written.
    if (matches_async_) op.work.extra_bytes = gathered_bytes() * (1 + 1 / f(shape_.tp));
    list.push_back(op);
    return;
  }
  const Operand sum = op.out[0];
  const Operand part = shape_.sequence_parallel ? Operand(kPartialSum) : sum;
  op.out[0] = part;
  list.push_back(op);
  copy_parts(list, OpKind::kCopyIn, part);
  list.push_back(reduction(part, sum, Overlap::kNone));
}

void ProgramWriter::row_backward(Ops& list, const Product& product, Overlap overlap) const {
  const bool of_attention = product.kind == OpKind::kOutputProjection;
  const Operand whole = of_attention ? kDGatheredMid : kDGathered;
  Product gathered = product;
  if (shape_.sequence_parallel) gathered.d_out = whole;
  gather_before(list, input_gradient(gathered), product.d_out, whole, overlap);
  list.push_back(weight_gradient_of(gathered));
  add_bias_gradient(list, gathered);
}

void ProgramWriter::column_forward(Ops& list, const std::vector<Product>& products, bool second,
                                   Overlap overlap) const {
  for (const Product& product : products) {
    if (&product == &products.front() || gathers_each()) {
      gather_before(list, product_forward(product), norm_output(second), gathered_norm(second),
                    overlap);
    } else {
      list.push_back(product_forward(product));
    }
  }
}

void ProgramWriter::column_backward(Ops& list, const std::vector<Product>& products, bool second,
                                    int sum_sms) const {
  const Operand d_in = products.front().d_in;
  const bool at_once = stack_.parallel.tensor.sums_gradients_at_once;
  const auto add_up = [&](double streams) {
    const double each = gathers_each() ? gathered_bytes() / f(shape_.tp) : gathered_bytes();
    list.push_back(memory(OpKind::kAccumulate, streams * each, 1, 1.0, {d_in}));
  };
  if (shape_.tp == 1) {
    // Two by two also where a compiler adds all at once: the published runs of data parallelism
    // that its kernels' rates are fitted to were counted so.
    for (auto product = products.rbegin(); product != products.rend(); ++product) {
      const bool adds = product != products.rbegin();
      product_backward(list, *product, adds);
      if (adds) add_up(3);
    }
    return;
  }
  const bool beside = stack_.parallel.async_tensor_backward ||
                      (overlap_ != TensorOverlap::kNone && !matches_async_);
  const Overlap overlap = beside ? Overlap::kFollowing : Overlap::kNone;
  const bool bulk = sum_sms > 0 && overlap_ == TensorOverlap::kUserbuffers;
  if (shape_.sequence_parallel && !keeps_gathered()) {
    Op gather = collective(CommGroup::kTensor, Collective::kAllGather, gathered_bytes(), overlap);
    add_input(gather, norm_output(second));
    add_output(gather, gathered_norm(second));
    if (bulk) gather.collective.sms = stack_.parallel.userbuffers.gather_sms;
    list.push_back(gather);
  }
  const auto reduce_to = [&](Operand sum) {
    copy_parts(list, OpKind::kCopyIn, d_in);
    Op reduce = reduction(d_in, sum, overlap);
    reduce.joins = true;  // what was gathered is there before the gradient of the weight
    if (bulk) reduce.collective.sms = sum_sms;
    list.push_back(reduce);
  };
  const Operand sum = norm_gradient(second);
  for (const Product& product : products) {
    Op gradient = input_gradient(product);
    const bool adds = &product != &products.front();
    if (adds) {
      gradient.out[0] = {};
      gradient.temporary_bytes = tensors_[d_in.tensor].bytes;
    }
    list.push_back(gradient);
    if (gathers_each()) reduce_to(adds ? d_in : sum);
    if (adds && !at_once) add_up(3);
  }
  if (at_once && products.size() > 1) add_up(f(static_cast<std::int64_t>(products.size()) + 1));
  if (!gathers_each()) reduce_to(sum);
  for (const Product& product : products) list.push_back(weight_gradient_of(product));
  for (const Product& product : products) add_bias_gradient(list, product);
}

}  // namespace shardwright::sim
