// SPDX-License-Identifier: Apache-2.0
// A recurrence in place of attention: norm, product in, convolution, state, gated norm, product out
// (struct Recurrence).
//
// States are computed chunk by chunk: within a chunk of Q tokens by products of tokens with tokens,
// between chunks through a state of N x P numbers a head, N = key_dim and P = value_dim. A token of
// a chunk sees half of it in the mean.
//   Mamba-2 (mamba_ssm/ops/triton/ssd_combined.py): C B^T of each group, Q x Q x N; the state that
//   a chunk adds, N x P x Q a head; and what comes out, Q x P x (Q / 2 + N) a head. Sums of
//   log-decays and the states' passing from chunk to chunk are kernels of bytes.
//   Gated delta nets (fla/ops/gated_delta_rule, chunks of 64): K K^T and the inverse of a
//   triangular matrix from it, Q x Q x N and Q x Q x Q / 3; W and U, Q x N x Q / 2 and Q x P x Q /
//   2; what the state already knows, Q x P x N; what is added, N x P x Q; Q K^T, Q x Q x N; and
//   what comes out, Q x P x (Q / 2 + N), all of a head.
// Backward computes the states again, and two gradients of each product. Kept for it are the
// product in and the recurrence's output; Mamba-2 convolves again (MambaSplitConv1dScanCombinedFn),
// delta nets keep what was convolved. Gradients of the convolution, decays and the norm are small
// and stand with what makes them.
#include <vector>

#include "sim/program/real.h"
#include "sim/program/unit_programs.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

Product product_in(const ProgramWriter& w) {
  const Recurrence& r = w.shape().recurrence;
  return {OpKind::kRecurrenceProjection,
          Weight::kRecurrentIn,
          r.product_width(),
          w.shape().hidden,
          w.gathered_norm(false),
          kRecurrentIn,
          kDRecurrentIn,
          kDNorm1,
          r.bias};
}

Product product_out(const ProgramWriter& w) {
  const Recurrence& r = w.shape().recurrence;
  return {OpKind::kOutputProjection,
          Weight::kRecurrentOut,
          w.model().hidden,
          r.value_width(),
          kRecurrentGated,
          w.adds_residual() || w.has_post_norms() ? kProjected : kXMid,
          first_half_gradient(w),
          kDRecurrentGated,
          r.bias};
}

/// So many matrices of `channels` a token, read or written.
Op moved(const ProgramWriter& w, OpKind kind, double matrices, std::int64_t channels,
         std::initializer_list<Operand> in, std::initializer_list<Operand> out) {
  return ProgramWriter::memory(kind, matrices * f(w.width()) * w.elements(channels), 1, 1.0, in,
                               out);
}

/// With its SiLU.
Op convolution(const ProgramWriter& w) {
  return moved(w, OpKind::kConvolution, 2, w.shape().recurrence.convolved(), {kRecurrentIn},
               {kRecurrentConvolved});
}

struct ChunkProduct {
  std::int64_t m, n, k;
  std::int64_t heads;  // of each chunk
};

std::vector<ChunkProduct> chunk_products(const Recurrence& r, std::int64_t chunk) {
  const std::int64_t n = r.key_dim, p = r.value_dim, h = r.value_heads;
  const ChunkProduct adds = {n, p, chunk, h}, comes_out = {chunk, p, chunk / 2 + n, h};
  if (r.kind == RecurrenceKind::kMamba2) return {{chunk, chunk, n, r.key_heads}, adds, comes_out};
  return {{chunk, chunk, n + chunk / 3, h},
          {chunk, n + p, chunk / 2, h},
          {chunk, p, n, h},
          adds,
          {chunk, chunk, n, h},
          comes_out};
}

/// The kernels of the state. `times`: 1 forward, 3 backward.
void scan(const ProgramWriter& w, Ops& list, std::int64_t times, std::initializer_list<Operand> in,
          Operand out) {
  const Recurrence& r = w.shape().recurrence;
  const std::int64_t chunk = std::min(r.chunk, w.shape().seq_len);
  const std::int64_t chunks = (w.tokens() + chunk - 1) / chunk;
  const std::size_t first = list.size();
  // States in fp32, written by the kernel that makes them and passed on by another.
  const double states = 4 * f(chunks * r.value_heads * r.key_dim) * f(r.value_dim);
  Op passing = ProgramWriter::memory(OpKind::kScan, f(times) * 3 * states, 2, 1.0);
  passing.temporary_bytes = static_cast<Bytes>(states);
  list.push_back(passing);
  for (const ChunkProduct& each : chunk_products(r, chunk)) {
    Op op = w.product(OpKind::kScan, each.m, each.n, each.k);
    op.work.groups = times * chunks * each.heads;
    op.keeps_high_precision = true;
    list.push_back(op);
  }
  for (std::size_t i = first; i < list.size(); ++i) {
    for (const Operand& operand : in) add_input(list[i], operand);
  }
  add_output(list.back(), out);
}

/// The RMSNorm of what comes out and the SiLU of the other half of the product in.
Op gated_norm(const ProgramWriter& w, bool backward) {
  const std::int64_t channels = w.shape().recurrence.value_width();
  Op op =
      backward
          ? moved(w, OpKind::kNorm, 5, channels, {kDRecurrentGated, kRecurrentOut, kRecurrentIn},
                  {kDRecurrentOut, kDRecurrentIn})
          : moved(w, OpKind::kNorm, 3, channels, {kRecurrentOut, kRecurrentIn}, {kRecurrentGated});
  op.weight = Weight::kRecurrentNorm;
  return op;
}

}  // namespace

void recurrence_forward(const ProgramWriter& w, Ops& list) {
  list.push_back(w.norm(false, Weight::kNorm1));
  w.column_forward(list, {product_in(w)}, false, w.gathers());
  list.push_back(convolution(w));
  scan(w, list, 1, {kRecurrentConvolved, kRecurrentIn}, kRecurrentOut);
  list.push_back(gated_norm(w, false));
  first_half_ends(w, list, product_out(w));
}

void recurrence_backward(const ProgramWriter& w, Ops& list) {
  first_half_begins_backward(w, list, product_out(w));
  list.push_back(gated_norm(w, true));
  if (w.shape().recurrence.kind == RecurrenceKind::kMamba2) list.push_back(convolution(w));
  scan(w, list, 3, {kDRecurrentOut, kRecurrentConvolved, kRecurrentIn}, kDRecurrentConvolved);
  list.push_back(moved(w, OpKind::kConvolution, 3, w.shape().recurrence.convolved(),
                       {kDRecurrentConvolved, kRecurrentIn}, {kDRecurrentIn}));
  w.column_backward(list, {product_in(w)}, false, 0);
  list.push_back(w.norm_backward(false, Weight::kNorm1, w.norm_gradient(false)));
  w.add_residual_gradient(list, kDXMid, kDX);
}

}  // namespace shardwright::sim
