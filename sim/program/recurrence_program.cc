// SPDX-License-Identifier: Apache-2.0
// A recurrence in place of attention, or beside it: product in, convolution, state, gate, product
// out (sim/core/recurrence.h).
//
// States are computed chunk by chunk: within a chunk of Q tokens by products of tokens with tokens,
// between chunks through a state of N x P numbers a head, N = key_dim and P = value_dim. A token of
// a chunk sees half of it in the mean.
//   Mamba-2 (mamba_ssm/ops/triton/ssd_combined.py): C B^T of each group, Q x Q x N; the state that
//   a chunk adds, N x P x Q a head; and what comes out, Q x P x (Q / 2 + N) a head. Sums of
//   log-decays and the states' passing from chunk to chunk are kernels of bytes. Lightning
//   attention (lightning_attn/ops/triton/lightning_attn2.py) has the same products, a group a head.
//   Gated delta nets (fla/ops/gated_delta_rule, chunks of 64): K K^T and the inverse of a
//   triangular matrix from it, Q x Q x N and Q x Q x Q / 3; W and U, Q x N x Q / 2 and Q x P x Q /
//   2; what the state already knows, Q x P x N; what is added, N x P x Q; Q K^T, Q x Q x N; and
//   what comes out, Q x P x (Q / 2 + N), all of a head. Kimi delta attention (fla/ops/kda) has the
//   same; its decays are one a channel of a key, whose sums within a chunk are kept in fp32.
//   Mamba's scan (mamba_ssm/csrc/selective_scan) holds states in registers: it reads what was
//   convolved, the steps, B, C and the gate, and writes what comes out with and without the gate;
//   backward reads these and writes their gradients. It counts as bytes alone, which it nearly is.
// Backward computes chunks' states again, and two gradients of each product. Kept for it are the
// product in and the recurrence's output; Mamba-2 convolves again (MambaSplitConv1dScanCombinedFn),
// others keep what was convolved. Gradients of the convolution, decays and the norm are small and
// stand with what makes them.
//
// Context ranks exchange heads for tokens before the convolution and back after the state, where
// Mamba-2 sends its gate back beside it (Megatron-LM core/ssm/mamba_context_parallel.py).
#include <algorithm>
#include <vector>

#include "sim/program/low_precision.h"
#include "sim/program/program_writer.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

RecurrenceKind kind_of(const ProgramWriter& w) {
  return w.shape().recurrence.kind;
}

/// Of Kimi delta attention's decays and gates the first of two products, too, which every tensor
/// rank computes whole.
std::vector<Product> products_in(const ProgramWriter& w) {
  const Recurrence& r = w.shape().recurrence;
  const Operand in = w.gathered_norm(false);
  std::vector<Product> products = {{OpKind::kRecurrenceProjection, Weight::kRecurrentIn,
                                    r.product_width(), w.shape().hidden, in, kRecurrentIn,
                                    kDRecurrentIn, kDNorm1, r.bias}};
  if (r.kind == RecurrenceKind::kKimiDelta && r.rank > 0) {
    products.push_back({OpKind::kRecurrenceProjection, Weight::kRecurrentDown, r.latent_width(),
                        w.shape().hidden, in, kRecurrentLatent, kDRecurrentLatent, kDNorm1});
  }
  return products;
}

Product product_out(const ProgramWriter& w, bool beside_attention) {
  const Recurrence& r = w.shape().recurrence;
  return {OpKind::kOutputProjection,
          Weight::kRecurrentOut,
          w.model().hidden,
          r.value_width(),
          kRecurrentGated,
          beside_attention                          ? kRecurrentProjected
          : w.adds_residual() || w.has_post_norms() ? kProjected
                                                    : kXMid,
          first_half_gradient(w),
          kDRecurrentGated,
          r.bias};
}

/// Products within the recurrence, which no collective follows.
std::vector<Product> inner_products(const ProgramWriter& w) {
  const Recurrence& r = w.shape().recurrence;
  const auto product = [](Weight weight, std::int64_t n, std::int64_t k, Tensor in, Tensor out,
                          Tensor d_out, Tensor d_in) {
    return Product{OpKind::kRecurrenceProjection, weight, n, k, in, out, d_out, d_in};
  };
  const auto up = [&](std::int64_t n) {
    return product(Weight::kRecurrentUp, n, r.rank, kRecurrentLatent, kRecurrentUp, kDRecurrentUp,
                   kDRecurrentLatent);
  };
  if (r.up_width() == 0) return {};
  if (r.kind == RecurrenceKind::kKimiDelta) return {up(r.key_width()), up(r.value_width())};
  return {product(Weight::kRecurrentDown, r.latent_width(), r.value_width(), kRecurrentConvolved,
                  kRecurrentLatent, kDRecurrentLatent, kDRecurrentConvolved),
          up(r.value_width())};
}

/// So many matrices of `channels` a token, read or written.
Op moved(const ProgramWriter& w, OpKind kind, double matrices, std::int64_t channels,
         std::initializer_list<Operand> in, std::initializer_list<Operand> out) {
  return ProgramWriter::memory(kind, matrices * f(w.width()) * w.elements(channels), 1, 1.0, in,
                               out);
}

/// Where the product in lies when it is convolved.
Operand source(const ProgramWriter& w) {
  return w.shape().cp > 1 ? kRecurrentExchanged : kRecurrentIn;
}

/// Heads for tokens, or back.
void exchange(const ProgramWriter& w, Ops& list, std::int64_t channels,
              std::initializer_list<Operand> in, std::initializer_list<Operand> out) {
  if (w.shape().cp == 1) return;
  Op op = ProgramWriter::make(OpKind::kAllGather, Phase::kForward, in, out);
  op.collective = {CommGroup::kContext, Collective::kAllGather, Pattern::kExchange, Overlap::kNone,
                   f(w.width()) * w.elements(channels)};
  list.push_back(op);
}

/// Channels of a token that leave: of groups that several context ranks share a copy for each.
std::int64_t sent_channels(const ProgramWriter& w) {
  const Recurrence& r = w.shape().recurrence;
  const std::int64_t copies = std::max<std::int64_t>(1, w.shape().cp / r.key_heads);
  return r.product_width() + r.up_width() + (copies - 1) * 2 * r.key_width();
}
std::int64_t returned_channels(const ProgramWriter& w) {
  const Recurrence& r = w.shape().recurrence;
  return (r.kind == RecurrenceKind::kMamba2 && r.norm ? 2 : 1) * r.value_width();
}

/// With its SiLU, or SiLU alone.
Op convolution(const ProgramWriter& w) {
  const Recurrence& r = w.shape().recurrence;
  return moved(w, r.taps > 0 ? OpKind::kConvolution : OpKind::kActivation, 2, r.convolved(),
               {source(w)}, {kRecurrentConvolved});
}

struct ChunkProduct {
  std::int64_t m, n, k;
  std::int64_t heads;  // of each chunk
};

std::vector<ChunkProduct> chunk_products(const Recurrence& r, std::int64_t chunk) {
  const std::int64_t n = r.key_dim, p = r.value_dim, h = r.value_heads;
  const ChunkProduct adds = {n, p, chunk, h}, comes_out = {chunk, p, chunk / 2 + n, h};
  if (r.kind == RecurrenceKind::kMamba2 || r.kind == RecurrenceKind::kLightning)
    return {{chunk, chunk, n, r.key_heads}, adds, comes_out};
  return {{chunk, chunk, n + chunk / 3, h},
          {chunk, n + p, chunk / 2, h},
          {chunk, p, n, h},
          adds,
          {chunk, chunk, n, h},
          comes_out};
}

/// The kernels of the state. `times`: 1 forward, 3 backward.
void chunked_scan(const ProgramWriter& w, Ops& list, std::int64_t times,
                  std::initializer_list<Operand> in, std::initializer_list<Operand> out) {
  const Recurrence& r = w.shape().recurrence;
  // Of a context rank fewer heads of longer sequences: as many chunks of heads.
  const std::int64_t chunk = std::min(r.chunk, w.shape().seq_len * w.shape().cp);
  const std::int64_t chunks = (w.tokens() + chunk - 1) / chunk;
  const std::size_t first = list.size();
  // States in fp32, written by the kernel that makes them and passed on by another.
  const double states = 4 * f(chunks * r.value_heads * r.key_dim) * f(r.value_dim);
  const double decays = r.kind == RecurrenceKind::kKimiDelta ? 4 * w.elements(r.key_width()) : 0.0;
  Op passing = ProgramWriter::memory(OpKind::kScan, f(times) * (3 * states + 2 * decays), 2, 1.0);
  passing.temporary_bytes = static_cast<Bytes>(states + decays);
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
  for (const Operand& operand : out) add_output(list.back(), operand);
}

/// The RMSNorm, where there is one, of what comes out and the activation of its gate.
Op gated_norm(const ProgramWriter& w, bool backward) {
  const Recurrence& r = w.shape().recurrence;
  const OpKind kind = r.norm ? OpKind::kNorm : OpKind::kGate;
  const bool apart = r.kind == RecurrenceKind::kKimiDelta && r.rank > 0;
  const Operand gate = apart ? kRecurrentUp : source(w);
  Op op = backward ? moved(w, kind, 5, r.value_width(), {kDRecurrentGated, kRecurrentOut, gate},
                           {kDRecurrentOut, apart ? kDRecurrentUp : kDRecurrentIn})
                   : moved(w, kind, 3, r.value_width(), {kRecurrentOut, gate}, {kRecurrentGated});
  op.weight = r.norm ? Weight::kRecurrentNorm : Weight::kNone;
  return op;
}

void inner_forward(const ProgramWriter& w, Ops& list) {
  for (const Product& product : inner_products(w)) list.push_back(w.product_forward(product));
}
void inner_backward(const ProgramWriter& w, Ops& list) {
  const std::vector<Product> products = inner_products(w);
  for (auto product = products.rbegin(); product != products.rend(); ++product) {
    list.push_back(w.input_gradient(*product));
    list.push_back(w.weight_gradient_of(*product));
  }
}

/// Of Mamba's steps, B and C, or of queries and keys, in place.
void inner_norm(const ProgramWriter& w, Ops& list, bool backward) {
  const Recurrence& r = w.shape().recurrence;
  if (!r.inner_norms) return;
  const bool heads = r.kind == RecurrenceKind::kLightning;
  const Operand of = heads ? (backward ? kDRecurrentConvolved : kRecurrentConvolved)
                           : (backward ? kDRecurrentLatent : kRecurrentLatent);
  const std::int64_t channels = heads ? 2 * r.key_width() : r.latent_width();
  list.push_back(
      w.elementwise(OpKind::kNorm, w.stack().norm, w.elements(channels), backward, {of}));
  list.back().weight = Weight::kRecurrentNorm;
}

void selective_forward(const ProgramWriter& w, Ops& list) {
  const Recurrence& r = w.shape().recurrence;
  list.push_back(convolution(w));
  const std::vector<Product> products = inner_products(w);
  list.push_back(w.product_forward(products.front()));
  inner_norm(w, list, false);
  list.push_back(w.product_forward(products.back()));
  const double bytes = f(w.width()) * w.elements(5 * r.value_width() + 2 * r.key_dim);
  list.push_back(w.memory(OpKind::kScan, bytes, 1, 1.0,
                          {kRecurrentConvolved, kRecurrentUp, kRecurrentLatent, kRecurrentIn},
                          {kRecurrentGated, kRecurrentOut}));
}

void selective_backward(const ProgramWriter& w, Ops& list) {
  const Recurrence& r = w.shape().recurrence;
  const double bytes = f(w.width()) * w.elements(8 * r.value_width() + 4 * r.key_dim);
  list.push_back(w.memory(OpKind::kScan, bytes, 1, 1.0,
                          {kDRecurrentGated, kRecurrentOut, kRecurrentConvolved, kRecurrentUp,
                           kRecurrentLatent, kRecurrentIn},
                          {kDRecurrentConvolved, kDRecurrentUp, kDRecurrentLatent, kDRecurrentIn}));
  const std::vector<Product> products = inner_products(w);
  list.push_back(w.input_gradient(products.back()));
  list.push_back(w.weight_gradient_of(products.back()));
  inner_norm(w, list, true);
  list.push_back(w.input_gradient(products.front()));
  list.push_back(w.weight_gradient_of(products.front()));
  list.push_back(moved(w, OpKind::kConvolution, 3, r.convolved(),
                       {kDRecurrentConvolved, kRecurrentIn}, {kDRecurrentIn}));
}

/// A gate before the convolution and one behind it.
void short_forward(const ProgramWriter& w, Ops& list) {
  const std::int64_t channels = w.shape().recurrence.value_width();
  list.push_back(moved(w, OpKind::kGate, 3, channels, {kRecurrentIn}, {kRecurrentOut}));
  list.push_back(
      moved(w, OpKind::kConvolution, 2, channels, {kRecurrentOut}, {kRecurrentConvolved}));
  list.push_back(
      moved(w, OpKind::kGate, 3, channels, {kRecurrentConvolved, kRecurrentIn}, {kRecurrentGated}));
}
void short_backward(const ProgramWriter& w, Ops& list) {
  const std::int64_t channels = w.shape().recurrence.value_width();
  list.push_back(moved(w, OpKind::kGate, 5, channels,
                       {kDRecurrentGated, kRecurrentConvolved, kRecurrentIn},
                       {kDRecurrentConvolved, kDRecurrentIn}));
  list.push_back(moved(w, OpKind::kConvolution, 3, channels, {kDRecurrentConvolved, kRecurrentOut},
                       {kDRecurrentOut}));
  list.push_back(
      moved(w, OpKind::kGate, 5, channels, {kDRecurrentOut, kRecurrentIn}, {kDRecurrentIn}));
}

void chunked_forward(const ProgramWriter& w, Ops& list) {
  inner_forward(w, list);
  const Operand up = w.shape().recurrence.up_width() > 0 ? Operand(kRecurrentUp) : Operand();
  exchange(w, list, sent_channels(w), {kRecurrentIn, up}, {kRecurrentExchanged});
  list.push_back(convolution(w));
  inner_norm(w, list, false);
  chunked_scan(w, list, 1, {kRecurrentConvolved, source(w), up}, {kRecurrentOut});
  exchange(w, list, returned_channels(w), {kRecurrentOut}, {});
  list.push_back(gated_norm(w, false));
}

void chunked_backward(const ProgramWriter& w, Ops& list) {
  const Recurrence& r = w.shape().recurrence;
  const bool ups = r.up_width() > 0;
  list.push_back(gated_norm(w, true));
  exchange(w, list, returned_channels(w), {kDRecurrentOut}, {});
  if (r.kind == RecurrenceKind::kMamba2) list.push_back(convolution(w));
  chunked_scan(w, list, 3,
               {kDRecurrentOut, kRecurrentConvolved, source(w), ups ? kRecurrentUp : kNone},
               {kDRecurrentConvolved, ups ? kDRecurrentUp : kNone});
  inner_norm(w, list, true);
  Op mixing = moved(w, OpKind::kConvolution, 3, r.convolved(), {kDRecurrentConvolved, source(w)},
                    {kDRecurrentIn});
  if (r.taps == 0) mixing.kind = OpKind::kActivation;
  list.push_back(mixing);
  exchange(w, list, sent_channels(w), {kDRecurrentIn, ups ? kDRecurrentUp : kNone}, {});
  inner_backward(w, list);
}

}  // namespace

void recurrence_forward(const ProgramWriter& w, Ops& list, bool beside_attention) {
  w.column_forward(list, products_in(w), false, w.gathers());
  switch (kind_of(w)) {
    case RecurrenceKind::kMamba1:
      selective_forward(w, list);
      break;
    case RecurrenceKind::kShortConvolution:
      short_forward(w, list);
      break;
    default:
      chunked_forward(w, list);
  }
  const Product out = product_out(w, beside_attention);
  beside_attention ? w.row_forward(list, out) : first_half_ends(w, list, out);
}

void recurrence_backward(const ProgramWriter& w, Ops& list) {
  first_half_begins_backward(w, list, product_out(w, false));
  switch (kind_of(w)) {
    case RecurrenceKind::kMamba1:
      selective_backward(w, list);
      break;
    case RecurrenceKind::kShortConvolution:
      short_backward(w, list);
      break;
    default:
      chunked_backward(w, list);
  }
  w.column_backward(list, products_in(w), false, 0);
}

}  // namespace shardwright::sim
