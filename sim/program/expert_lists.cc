// SPDX-License-Identifier: Apache-2.0
#include "sim/program/expert_lists.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "profiles/software_settings.h"
#include "sim/cost/dispatch_cost.h"
#include "sim/program/low_precision.h"
#include "sim/program/real.h"

namespace shardwright::sim {
namespace {

std::int64_t whole(double value) {
  return std::max<std::int64_t>(1, std::llround(value));
}

/// Products that apply the activation and cast what they put out.
bool fused_experts(const ListWriter& w, const ExpertShape& shape) {
  return w.model().gated_mlp && shape.dropless &&
         w.plan().parallel.cuda_graphs == CudaGraphs::kStep &&
         fp8_scaled(w.plan(), Fp8Recipe::kMxfp8) && w.stack().parallel.moe.fused_grouped_gemms;
}

/// Operations on rows of a number that only the device knows.
class ExpertWriter {
 public:
  ExpertWriter(const ListWriter& writer, Ops& list)
      : w_(writer),
        list_(list),
        shape_(expert_shape(writer.model(), writer.plan(), writer.stack())),
        dispatcher_(dispatcher_of(writer.plan(), writer.stack())),
        fused_(fused_experts(writer, shape_)) {}

  void forward() {
    const Model& m = w_.model();
    const RankShape& s = w_.shape();
    add(w_.elementwise(OpKind::kNorm, w_.stack().norm, shape_.tokens * f(s.hidden), false));
    add_wide(w_.product(OpKind::kRouter, whole(shape_.tokens), m.experts.count, s.hidden));
    add(w_.memory(OpKind::kRouter, routing_bytes(), 6, 1));
    dispatch(false);
    if (overlaps_shared()) shared_forward();
    sort_rows();
    products(false);
    activation(false);
    down(false);
    sort_rows();
    combine(false);
    if (!overlaps_shared()) shared_forward();
    if (w_.stack().residual.forward_kernels > 0)
      add(w_.elementwise(OpKind::kResidual, w_.stack().residual, shape_.tokens * f(s.hidden),
                         false));
  }

  void backward() {
    const Model& m = w_.model();
    const RankShape& s = w_.shape();
    sort_rows();
    combine(true);
    if (overlaps_shared()) shared_backward();
    down(true);
    activation(true);
    products(true);
    sort_rows();
    dispatch(true);
    if (!overlaps_shared()) shared_backward();
    add(w_.memory(OpKind::kRouter, 2 * routing_bytes(), 6, 1));
    add_wide(w_.product(OpKind::kInputGradient, whole(shape_.tokens), s.hidden, m.experts.count));
    add_wide(w_.weight_gradient(whole(shape_.tokens), m.experts.count, s.hidden));
    Op norm = w_.elementwise(OpKind::kNorm, w_.stack().norm, shape_.tokens * f(s.hidden), true);
    norm.joins = true;
    add(norm);
    if (w_.stack().residual.backward_kernels > 0)
      add(w_.elementwise(OpKind::kResidual, w_.stack().residual, shape_.tokens * f(s.hidden),
                         true));
  }

 private:
  void add(const Op& op) { list_.push_back(op); }

  void add_wide(Op op) {
    op.keeps_high_precision = true;
    add(op);
  }

  /// What a static shape would let a graph hold.
  void add_dynamic(Op op) {
    op.dynamic = shape_.dropless;
    add(op);
  }

  bool alone() const { return w_.plan().parallel.ep * w_.plan().parallel.etp == 1; }
  bool overlaps_shared() const {
    return shape_.shared_ffn > 0 && w_.stack().parallel.overlaps_shared_experts && !alone();
  }
  bool with_others() const { return w_.plan().parallel.ep_overlap.value_or(false); }

  /// Another micro-batch computes while rows travel, or this one waits for them.
  bool joins() const { return !with_others(); }

  /// fp32 scores of all experts through softmax, choice, weights and the balancing loss.
  double routing_bytes() const { return 4 * 6 * shape_.tokens * f(w_.model().experts.count); }

  double row_bytes() const { return w_.width() * f(w_.shape().hidden); }
  /// Tokens of all ranks with an expert on this one.
  double arrived_tokens() const {
    const Experts& e = w_.model().experts;
    const double all = shape_.all_rows() / f(e.per_token);  // of this rank's rows
    return all * distinct_places(e.count, e.per_token, w_.plan().parallel.ep);
  }
  double sent_rows() const { return shape_.tokens * f(w_.model().experts.per_token); }

  void wait_for_counts() {
    if (!shape_.dropless) return;
    Op counts = w_.memory(OpKind::kRouter, 4 * shape_.tokens, 2, 1);
    counts.host_reads = true;
    add_dynamic(counts);
  }

  /// HybridEP finds out where rows go from who chose whom on all ranks, a byte each.
  void gather_routing() {
    const double bytes = shape_.tokens * f(w_.model().experts.count) * f(w_.plan().parallel.ep);
    add(w_.collective(CommGroup::kExpert, Collective::kAllGather, bytes,
                      with_others() ? Overlap::kOtherMicroBatch : Overlap::kNone));
    add(w_.memory(OpKind::kRouter, bytes, 1, 1));
  }

  Op transfer() const {
    const Experts& e = w_.model().experts;
    Op op;
    op.kind = OpKind::kAllToAll;
    CollectiveWork& c = op.collective;
    c.group = CommGroup::kExpert;
    c.overlap = with_others()       ? Overlap::kOtherMicroBatch
                : overlaps_shared() ? Overlap::kFollowing
                                    : Overlap::kNone;
    if (dispatcher_ == Dispatcher::kAllGather) {
      c.bytes = row_bytes() * shape_.tokens * f(w_.plan().parallel.ep);
      return op;
    }
    c.pattern = Pattern::kTokens;
    c.bytes = row_bytes() * sent_rows();
    c.dispatcher = dispatcher_;
    c.tokens.tokens = shape_.tokens;
    c.tokens.token_bytes = row_bytes();
    c.tokens.experts = e.count;
    c.tokens.per_token = e.per_token;
    c.tokens.domains_per_token = e.groups > 1 ? e.groups_per_token : 0;
    c.sms = w_.stack().parallel.dispatch_sms;
    return op;
  }

  /// What each row counts, or the gradient of it, in fp32.
  void send_weights() {
    Op op = transfer();
    op.collective.tokens.token_bytes = 4;
    op.collective.bytes = op.collective.tokens.token_bytes * sent_rows();
    add_dynamic(op);
  }

  /// Tokens to experts; in backward the same rows' gradients come back that way.
  void dispatch(bool backward) {
    const bool sorts_first = dispatcher_ == Dispatcher::kAllToAll;
    if (!backward) {
      if (!alone() && sorts_first) {
        add(w_.collective(CommGroup::kExpert, Collective::kAllGather,
                          4 * f(w_.model().experts.count * w_.plan().parallel.ep)));
      }
      if (dispatcher_ == Dispatcher::kHybridEp && !alone()) gather_routing();
      if (sorts_first || alone()) wait_for_counts();
      if (sorts_first && !alone()) permute();
    }
    if (!alone()) {
      Op op = transfer();
      if (backward && dispatcher_ == Dispatcher::kAllGather)
        op.collective.kind = Collective::kReduceScatter;
      add_dynamic(op);
      if (sorts_first && w_.stack().parallel.moe.exchanges_weights) send_weights();
    }
    if (!backward && !alone() && !sorts_first) wait_for_counts();
    if (backward && (sorts_first || alone())) permute();
  }

  void combine(bool backward) {
    if (!alone()) {
      Op op = transfer();
      if (!backward && dispatcher_ == Dispatcher::kAllGather)
        op.collective.kind = Collective::kReduceScatter;
      add_dynamic(op);
    }
    // The weighted sum of a token's rows, or the rows of its gradient.
    if (dispatcher_ == Dispatcher::kAllToAll || alone()) permute();
  }

  /// Gathers rows of tokens, or adds rows of one token up.
  void permute() {
    add_dynamic(w_.memory(OpKind::kPermute, row_bytes() * (shape_.tokens + sent_rows()), 2,
                          w_.stack().parallel.permute_efficiency));
  }

  /// Rows in the order of the local experts, or back in that of the ranks they came from. Kernels
  /// made for experts bring a token once for all experts of a rank; another kernel makes its rows
  /// (DeepEP csrc/hybrid_ep/extension/permute.cu; fusing it is not the default).
  void sort_rows() {
    const bool once = dispatcher_ == Dispatcher::kDeepEp || dispatcher_ == Dispatcher::kHybridEp;
    if (alone() || (shape_.local_experts == 1 && !once)) return;
    const double arrived = once ? arrived_tokens() : shape_.all_rows();
    Op op = w_.memory(OpKind::kPermute, row_bytes() * (arrived + shape_.all_rows()), 1,
                      w_.stack().parallel.permute_efficiency);
    op.joins = joins();
    add_dynamic(op);
  }

  Op grouped(Op op) const {
    op.work.groups = shape_.local_experts;
    op.work.extra_bytes *= f(op.work.groups);
    const bool one = fused_ || w_.stack().parallel.grouped_in_one_kernel;
    op.work.kernels =
        static_cast<std::uint16_t>(one ? 1 : std::min<std::int64_t>(op.work.groups, 65535));
    op.dynamic = shape_.dropless;
    op.joins = joins();
    return op;
  }

  /// Bytes of an element along rows and along columns, with a scale for each 32.
  static double both_casts() { return 2 * (1 + 1.0 / 32); }
  std::int64_t up_columns() const { return (w_.model().gated_mlp ? 2 : 1) * shape_.ffn; }

  void products(bool backward) {
    const std::int64_t h = w_.shape().hidden;
    if (!backward) {
      Op up = w_.product(OpKind::kUpProjection, shape_.rows, up_columns(), h);
      // Backward reads the result in bf16; FC2 and its weight gradient read the two casts.
      if (fused_) up.work.extra_bytes = f(shape_.rows) * f(shape_.ffn) * both_casts();
      add(grouped(up));
      return;
    }
    Op gradient = w_.product(OpKind::kInputGradient, shape_.rows, h, up_columns());
    gradient.narrow_input = fused_;
    add(grouped(gradient));
    add(grouped(w_.weight_gradient(shape_.rows, up_columns(), h)));
  }

  void down(bool backward) {
    const std::int64_t h = w_.shape().hidden;
    if (!backward) {
      Op product = w_.product(OpKind::kDownProjection, shape_.rows, h, shape_.ffn);
      product.narrow_input = fused_;
      add(grouped(product));
      return;
    }
    Op gradient = w_.product(OpKind::kInputGradient, shape_.rows, shape_.ffn, h);
    // FC1's result is read, and the gradient of it put out in two casts in place of one in bf16.
    if (fused_) {
      gradient.work.extra_bytes = f(shape_.rows) * (f(up_columns()) * (w_.width() + both_casts()) -
                                                    f(shape_.ffn) * w_.width());
    }
    add(grouped(gradient));
    add(grouped(w_.weight_gradient(shape_.rows, h, shape_.ffn)));
  }

  /// Biases keep activation and weights from running in one kernel.
  bool unfused() const {
    return (w_.model().experts.bias || w_.model().mlp_bias) &&
           w_.stack().parallel.moe.unfused_biases;
  }

  void unfused_activation(bool backward) {
    const MoeSoftware& k = w_.stack().parallel.moe;
    const double activation =
        backward ? k.unfused_activation_backward_bytes : k.unfused_activation_forward_bytes;
    const double bias = backward ? k.unfused_bias_backward_bytes : k.unfused_bias_forward_bytes;
    add_dynamic(w_.memory(
        OpKind::kActivation,
        shape_.all_rows() * (activation * f(shape_.ffn) + bias * f(w_.shape().hidden)),
        backward ? k.unfused_backward_kernels : k.unfused_forward_kernels, w_.stack().copies.add));
  }

  void activation(bool backward) {
    if (fused_) return;
    if (unfused()) return unfused_activation(backward);
    const bool gated = w_.model().gated_mlp;
    add_dynamic(w_.elementwise(OpKind::kActivation,
                               gated ? w_.stack().gated_activation : w_.stack().plain_activation,
                               shape_.all_rows() * f(shape_.ffn), backward));
  }

  void shared_forward() {
    if (shape_.shared_ffn == 0) return;
    const RankShape& s = w_.shape();
    const bool gated = w_.model().gated_mlp;
    w_.gather_before(
        list_,
        w_.product(OpKind::kUpProjection, s.tokens, (gated ? 2 : 1) * shape_.shared_ffn, s.hidden),
        Overlap::kNone);
    add(w_.elementwise(OpKind::kActivation,
                       gated ? w_.stack().gated_activation : w_.stack().plain_activation,
                       f(s.tokens) * f(shape_.shared_ffn), false));
    w_.reduce_after(list_,
                    w_.product(OpKind::kDownProjection, s.tokens, s.hidden, shape_.shared_ffn));
    add(w_.memory(OpKind::kAccumulate, 3 * w_.width() * shape_.tokens * f(s.hidden), 1,
                  w_.stack().copies.add));
  }

  void shared_backward() {
    if (shape_.shared_ffn == 0) return;
    const RankShape& s = w_.shape();
    const bool gated = w_.model().gated_mlp;
    const std::int64_t up = (gated ? 2 : 1) * shape_.shared_ffn;
    w_.gather_before(list_,
                     w_.product(OpKind::kInputGradient, s.tokens, shape_.shared_ffn, s.hidden),
                     Overlap::kNone);
    add(w_.weight_gradient(s.tokens, s.hidden, shape_.shared_ffn));
    add(w_.elementwise(OpKind::kActivation,
                       gated ? w_.stack().gated_activation : w_.stack().plain_activation,
                       f(s.tokens) * f(shape_.shared_ffn), true));
    w_.reduce_after(list_, w_.product(OpKind::kInputGradient, s.tokens, s.hidden, up));
    add(w_.weight_gradient(s.tokens, up, s.hidden));
    add(w_.memory(OpKind::kAccumulate, 3 * w_.width() * shape_.tokens * f(s.hidden), 1,
                  w_.stack().copies.add));
  }

  const ListWriter& w_;
  Ops& list_;
  ExpertShape shape_;
  Dispatcher dispatcher_;
  bool fused_;
};

/// Channels of the two latent vectors, and those of heads that are made of them.
struct LatentSizes {
  std::int64_t query = 0, key_value = 0;       // with the rotated part of the key
  std::int64_t query_heads = 0, up_heads = 0;  // of this rank
};

LatentSizes latent_sizes(const ListWriter& w) {
  const LatentAttention& l = w.model().latent;
  return {l.q_rank, l.kv_rank + l.rope_dim, w.shape().q_dim(),
          w.shape().heads * (l.nope_dim + l.v_dim)};
}

/// x of all tokens of a latent vector with sequence parallelism.
void gather_latent(const ListWriter& w, Ops& list, std::int64_t channels, bool backward) {
  if (!w.shape().sequence_parallel) return;
  list.push_back(w.collective(CommGroup::kTensor,
                              backward ? Collective::kReduceScatter : Collective::kAllGather,
                              w.width() * f(w.shape().tokens) * f(channels)));
}

}  // namespace

Dispatcher dispatcher_of(const Plan& plan, const Stack& stack) {
  return plan.parallel.dispatcher.value_or(profiles::usual_dispatcher(stack));
}

ExpertShape expert_shape(const Model& model, const Plan& plan, const Stack& stack) {
  const Parallelism& p = plan.parallel;
  const Experts& e = model.experts;
  const RankShape rank = rank_shape(model, plan);
  ExpertShape s;
  s.tokens = f(rank.sharded_tokens);
  s.local_experts = rank.experts;
  s.ffn = rank.expert_ffn;
  s.shared_ffn = rank.shared_ffn;
  const double capacity = p.expert_capacity.value_or(0);
  s.dropless = capacity == 0;
  const double uneven = s.dropless ? std::max(1.0, stack.parallel.expert_imbalance) : capacity;
  const double routed = s.tokens * f(e.per_token) * f(p.etp);
  s.rows = whole(uneven * routed / f(s.local_experts));
  return s;
}

void expert_forward(const ListWriter& writer, Ops& list) {
  ExpertWriter(writer, list).forward();
}

void expert_backward(const ListWriter& writer, Ops& list) {
  ExpertWriter(writer, list).backward();
}

void latent_forward(const ListWriter& w, Ops& list) {
  const RankShape& s = w.shape();
  const LatentSizes z = latent_sizes(w);
  const auto norm = [&](std::int64_t channels) {
    return w.elementwise(OpKind::kNorm, w.stack().norm, f(s.sharded_tokens) * f(channels), false);
  };
  if (z.query > 0) {
    list.push_back(w.product(OpKind::kQProjection, s.sharded_tokens, z.query, s.hidden));
    list.push_back(norm(z.query));
    gather_latent(w, list, z.query, false);
    list.push_back(w.product(OpKind::kQProjection, s.tokens, z.query_heads, z.query));
  } else {
    w.gather_before(list, w.product(OpKind::kQProjection, s.tokens, z.query_heads, s.hidden),
                    Overlap::kNone);
  }
  list.push_back(w.product(OpKind::kKProjection, s.sharded_tokens, z.key_value, s.hidden));
  list.push_back(norm(w.model().latent.kv_rank));
  gather_latent(w, list, z.key_value, false);
  list.push_back(w.product(OpKind::kVProjection, s.tokens, z.up_heads, w.model().latent.kv_rank));
  // RoPE of its part of the queries and of the one key, and keys put together for all heads.
  const double turned = f(s.tokens) * f((s.heads + 1) * w.model().latent.rope_dim);
  list.push_back(w.elementwise(OpKind::kRope, w.stack().rope, turned, false));
  list.push_back(w.memory(OpKind::kCopyOut, 2 * w.width() * f(s.tokens) * f(s.q_dim()), 2,
                          w.stack().copies.copy));
}

void latent_backward(const ListWriter& w, Ops& list) {
  const RankShape& s = w.shape();
  const LatentSizes z = latent_sizes(w);
  const auto both = [&](std::int64_t tokens, std::int64_t n, std::int64_t k) {
    list.push_back(w.product(OpKind::kInputGradient, tokens, k, n));
    list.push_back(w.weight_gradient(tokens, n, k));
  };
  const auto norm = [&](std::int64_t channels) {
    list.push_back(
        w.elementwise(OpKind::kNorm, w.stack().norm, f(s.sharded_tokens) * f(channels), true));
  };
  list.push_back(w.memory(OpKind::kCopyOut, 2 * w.width() * f(s.tokens) * f(s.q_dim()), 2,
                          w.stack().copies.copy));
  const double turned = f(s.tokens) * f((s.heads + 1) * w.model().latent.rope_dim);
  list.push_back(w.elementwise(OpKind::kRope, w.stack().rope, turned, true));
  both(s.tokens, z.up_heads, w.model().latent.kv_rank);
  gather_latent(w, list, z.key_value, true);
  norm(w.model().latent.kv_rank);
  both(s.sharded_tokens, z.key_value, s.hidden);
  if (z.query > 0) {
    both(s.tokens, z.query_heads, z.query);
    gather_latent(w, list, z.query, true);
    norm(z.query);
    both(s.sharded_tokens, z.query, s.hidden);
  } else {
    both(s.tokens, z.query_heads, s.hidden);
    gather_latent(w, list, s.hidden, true);
  }
  // Gradients of the two branches are added up.
  list.push_back(w.memory(OpKind::kAccumulate, 3 * w.width() * f(s.sharded_tokens) * f(s.hidden), 1,
                          w.stack().copies.add));
}

}  // namespace shardwright::sim
