// SPDX-License-Identifier: Apache-2.0
#include "sim/program/expert_program.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "profiles/ledger/ledger.h"
#include "sim/core/collective.h"
#include "sim/program/low_precision.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

std::int64_t whole(double value) {
  return std::max<std::int64_t>(1, std::llround(value));
}

/// Products that apply the activation and cast what they put out.
bool fused_experts(const ProgramWriter& w, const ExpertShape& shape) {
  return w.model().gated_mlp && shape.dropless &&
         w.plan().parallel.cuda_graphs == CudaGraphs::kStep && w.plan().numerics.lora == 0 &&
         fp8_scaled(w.plan(), Fp8Recipe::kMxfp8) && w.stack().parallel.moe.fused_grouped_gemms;
}

/// Operations on rows of a number that only the device knows.
class ExpertWriter {
 public:
  ExpertWriter(const ProgramWriter& writer, Ops& list)
      : w_(writer),
        list_(list),
        shape_(expert_shape(writer.model(), writer.plan(), writer.stack())),
        dispatcher_(dispatcher_of(writer.plan(), writer.stack())),
        fused_(fused_experts(writer, shape_)) {}

  void forward() {
    add(w_.norm(true, Weight::kNorm2));
    Op scores = w_.product(OpKind::kRouter, whole(shape_.tokens), w_.model().experts.count,
                           w_.shape().hidden);
    scores.weight = Weight::kRouter;
    add_wide(with(scores, {kNorm2Out}, {kRouterScores}));
    add(w_.memory(OpKind::kRouter, routing_bytes(), 6, 1, {kRouterScores}));
    latent_product(Weight::kExpertLatentDown, row_width(), w_.shape().hidden, kNorm2Out,
                   kExpertLatent);
    dispatch();
    if (overlaps_shared()) shared_forward();
    if (sorts()) sort_rows(kRowsArrived, kRows);
    up();
    activation(false);
    down();
    if (sorts()) sort_rows(kExpertOut, kRowsArrived);
    combine();
    latent_product(Weight::kExpertLatentUp, w_.shape().hidden, row_width(), kExpertLatentOut,
                   kExpertsOut);
    if (!overlaps_shared()) shared_forward();
    if (w_.adds_residual()) {
      add(w_.elementwise(OpKind::kResidual, w_.stack().residual,
                         w_.sharded_elements(w_.shape().hidden), false, {kXMid, kExpertsOut},
                         {of_next_unit(kX)}));
    } else {
      list_.back() = with(list_.back(), {kXMid}, {of_next_unit(kX)});
    }
  }

  void backward() {
    const std::int64_t tokens = whole(shape_.tokens), experts = w_.model().experts.count;
    const std::int64_t hidden = w_.shape().hidden;
    latent_gradients(Weight::kExpertLatentUp, hidden, row_width(), of_next_unit(kDX),
                     kDExpertLatent, kExpertLatentOut);
    if (sorts()) sort_rows(d_tokens_out(), kDExpertOut);
    combine_backward();
    if (overlaps_shared()) shared_backward();
    down_backward();
    activation(true);
    up_backward();
    if (sorts()) sort_rows(kDRows, kNone);
    dispatch_backward();
    latent_gradients(Weight::kExpertLatentDown, row_width(), hidden, kDRows, kDNorm2, kNorm2Out);
    if (!overlaps_shared()) shared_backward();
    add(w_.memory(OpKind::kRouter, 2 * routing_bytes(), 6, 1, {kRouterScores}));
    Op gradient = w_.product(OpKind::kInputGradient, tokens, hidden, experts);
    gradient.of = OpKind::kRouter;
    add_wide(with(gradient, {kDRows, kRouterScores}, {kDNorm2}));
    Op of_weight = w_.weight_gradient(tokens, experts, hidden);
    of_weight.of = OpKind::kRouter;
    of_weight.weight = Weight::kRouter;
    add_wide(with(of_weight, {kRouterScores, kNorm2Out}, {}));
    add(w_.norm_backward(true, Weight::kNorm2, kDNorm2));
    w_.add_residual_gradient(list_, of_next_unit(kDX), kDXMid);
  }

 private:
  static Op with(Op op, std::initializer_list<Operand> in, std::initializer_list<Operand> out) {
    for (const Operand& operand : in) add_input(op, operand);
    for (const Operand& operand : out) add_output(op, operand);
    return op;
  }
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

  std::int64_t row_width() const { return w_.model().expert_width(); }
  double row_bytes() const { return f(w_.width()) * f(row_width()); }
  bool is_latent() const { return w_.model().experts.latent > 0; }
  /// Of tokens on their way to experts and back, and the gradient of what comes back.
  Operand tokens_in() const { return is_latent() ? kExpertLatent : kNorm2Out; }
  Operand tokens_out() const { return is_latent() ? kExpertLatentOut : kExpertsOut; }
  Operand d_tokens_out() const { return is_latent() ? Operand(kDExpertLatent) : of_next_unit(kDX); }

  /// To the width of experts, and back; each rank on its own tokens.
  void latent_product(Weight weight, std::int64_t n, std::int64_t k, Operand in, Operand out) {
    if (!is_latent()) return;
    Op op = w_.product(OpKind::kRouter, whole(shape_.tokens), n, k);
    op.weight = weight;
    add(with(op, {in}, {out}));
  }
  void latent_gradients(Weight weight, std::int64_t n, std::int64_t k, Operand d_out, Operand d_in,
                        Operand in) {
    if (!is_latent()) return;
    Op gradient = w_.product(OpKind::kInputGradient, whole(shape_.tokens), k, n);
    gradient.of = OpKind::kRouter;
    add(with(gradient, {d_out}, {d_in}));
    Op of_weight = w_.weight_gradient(whole(shape_.tokens), n, k);
    of_weight.of = OpKind::kRouter;
    of_weight.weight = weight;
    add(with(of_weight, {d_out, in}, {}));
  }
  /// Tokens of all ranks with an expert on this one.
  double arrived_tokens() const {
    const Experts& e = w_.model().experts;
    const double all = shape_.all_rows() / f(e.per_token);  // of this rank's rows
    return all * distinct_places(e.count, e.per_token, w_.plan().parallel.ep);
  }
  double sent_rows() const { return shape_.tokens * f(w_.model().experts.per_token); }

  /// Kernels made for experts bring a token once for all experts of a rank.
  bool brings_once() const {
    return dispatcher_ == Dispatcher::kDeepEp || dispatcher_ == Dispatcher::kHybridEp;
  }
  /// Rows are put into the order of the experts before they leave.
  bool sorts_first() const { return dispatcher_ == Dispatcher::kAllToAll; }
  /// Rows that arrive are not in the order of the local experts.
  bool sorts() const { return !alone() && (shape_.local_experts > 1 || brings_once()); }
  Operand rows_arrived() const { return sorts() ? kRowsArrived : kRows; }
  void wait_for_counts() {
    if (!shape_.dropless) return;
    Op counts = w_.memory(OpKind::kRouter, 4 * shape_.tokens, 2, 1, {kRouterScores});
    counts.host_reads = true;
    counts.issued_with_others = !sorts_first() && !alone();  // the kernels' own wrapper reads them
    add_dynamic(counts);
  }

  /// HybridEP finds out where rows go from who chose whom on all ranks, a byte each.
  void gather_routing() {
    const double bytes = shape_.tokens * f(w_.model().experts.count) * f(w_.plan().parallel.ep);
    Op gather = w_.collective(CommGroup::kExpert, Collective::kAllGather, bytes,
                              with_others() ? Overlap::kOtherMicroBatch : Overlap::kNone);
    Op scan = w_.memory(OpKind::kRouter, bytes, 1, 1, {kRouterScores});
    gather.issued_with_others = scan.issued_with_others = true;
    add(with(gather, {kRouterScores}, {}));
    add(scan);
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
    c.tokens.busiest = shape_.busiest;
    c.sms = w_.stack().parallel.dispatch_sms;
    return op;
  }

  /// What each row counts, or the gradient of it, in fp32.
  void send_weights(Operand rows) {
    Op op = transfer();
    op.collective.tokens.token_bytes = 4;
    op.collective.bytes = op.collective.tokens.token_bytes * sent_rows();
    add_dynamic(with(op, {rows}, {}));
  }

  /// Tokens to experts.
  void dispatch() {
    if (!alone() && sorts_first()) {
      add(with(w_.collective(CommGroup::kExpert, Collective::kAllGather,
                             4 * f(w_.model().experts.count * w_.plan().parallel.ep)),
               {kRouterScores}, {}));
    }
    if (dispatcher_ == Dispatcher::kHybridEp && !alone()) gather_routing();
    if (sorts_first() || alone()) wait_for_counts();
    if (alone()) return permute(tokens_in(), kRows);
    if (sorts_first()) permute(tokens_in(), kRowsSent);
    add_dynamic(
        with(transfer(), {sorts_first() ? Operand(kRowsSent) : tokens_in()}, {rows_arrived()}));
    if (sorts_first() && w_.stack().parallel.moe.exchanges_weights) send_weights(rows_arrived());
    if (!sorts_first()) wait_for_counts();
  }

  /// The same rows' gradients come back that way.
  void dispatch_backward() {
    if (!alone()) {
      Op op = transfer();
      if (dispatcher_ == Dispatcher::kAllGather) op.collective.kind = Collective::kReduceScatter;
      add_dynamic(with(op, {kDRows}, {}));
      if (sorts_first() && w_.stack().parallel.moe.exchanges_weights) send_weights(kDRows);
    }
    if (sorts_first() || alone()) permute(kDRows, kNone);
  }

  /// The weighted sum of a token's rows.
  void combine() {
    const Operand rows = sorts() ? kRowsArrived : kExpertOut;
    if (alone()) return permute(kExpertOut, tokens_out());
    Op op = transfer();
    if (dispatcher_ == Dispatcher::kAllGather) op.collective.kind = Collective::kReduceScatter;
    add_dynamic(with(op, {rows}, {sorts_first() ? Operand(kRowsReturned) : tokens_out()}));
    if (sorts_first()) permute(kRowsReturned, tokens_out());
  }

  /// The rows of its gradient.
  void combine_backward() {
    if (alone()) return permute(d_tokens_out(), kDExpertOut);
    const bool there = sorts();  // made by the sort
    add_dynamic(with(transfer(), {there ? Operand(kDExpertOut) : d_tokens_out()},
                     {there ? kNone : kDExpertOut}));
    if (sorts_first()) permute(kDExpertOut, kNone);
  }

  /// Gathers rows of tokens, or adds rows of one token up.
  void permute(Operand from, Operand to) {
    add_dynamic(w_.memory(OpKind::kPermute, row_bytes() * (shape_.tokens + sent_rows()), 2,
                          w_.stack().parallel.permute_efficiency, {from}, {to}));
  }

  /// Rows in the order of the local experts, or back in that of the ranks they came from. What
  /// brings a token once has another kernel make its rows (DeepEP
  /// csrc/hybrid_ep/extension/permute.cu; fusing it is not the default).
  void sort_rows(Operand from, Operand to) {
    const double arrived = brings_once() ? arrived_tokens() : shape_.all_rows();
    Op op = w_.memory(OpKind::kPermute, row_bytes() * (arrived + shape_.all_rows()), 1,
                      w_.stack().parallel.permute_efficiency, {from}, {to});
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

  void up() {
    Op up = w_.product(OpKind::kUpProjection, shape_.rows, up_columns(), row_width());
    up.weight = Weight::kExpertUp;
    // Backward reads the result in bf16; FC2 and its weight gradient read the two casts.
    if (fused_) up.work.extra_bytes = f(shape_.rows) * f(shape_.ffn) * both_casts();
    add(with(grouped(up), {kRows}, {kExpertUp, fused_ ? kExpertActivation : kNone}));
  }

  void up_backward() {
    const std::int64_t h = row_width();
    Op gradient = w_.product(OpKind::kInputGradient, shape_.rows, h, up_columns());
    gradient.narrow_input = fused_;
    add(with(grouped(gradient), {kDExpertUp}, {kDRows}));
    Op of_weight = w_.weight_gradient(shape_.rows, up_columns(), h);
    of_weight.weight = Weight::kExpertUp;
    add(with(grouped(of_weight), {kDExpertUp, kRows}, {}));
  }

  void down() {
    Op product = w_.product(OpKind::kDownProjection, shape_.rows, row_width(), shape_.ffn);
    product.weight = Weight::kExpertDown;
    product.narrow_input = fused_;
    add(with(grouped(product), {kExpertActivation}, {kExpertOut}));
  }

  void down_backward() {
    const std::int64_t h = row_width();
    Op gradient = w_.product(OpKind::kInputGradient, shape_.rows, shape_.ffn, h);
    // FC1's result is read, and the gradient of it put out in two casts in place of one in bf16.
    if (fused_) {
      gradient.work.extra_bytes =
          f(shape_.rows) *
          (f(up_columns()) * (f(w_.width()) + both_casts()) - f(shape_.ffn) * f(w_.width()));
    }
    add(with(grouped(gradient), {kDExpertOut, fused_ ? kExpertUp : kNone},
             {fused_ ? kDExpertUp : kDExpertActivation}));
    Op of_weight = w_.weight_gradient(shape_.rows, h, shape_.ffn);
    of_weight.weight = Weight::kExpertDown;
    add(with(grouped(of_weight), {kDExpertOut, kExpertActivation}, {}));
  }

  /// Biases keep activation and weights from running in one kernel.
  bool unfused() const {
    return (w_.model().experts.bias || w_.model().mlp_bias) &&
           w_.stack().parallel.moe.unfused_biases;
  }

  Op unfused_activation(bool backward) const {
    const MoeSoftware& k = w_.stack().parallel.moe;
    const double activation =
        backward ? k.unfused_activation_backward_bytes : k.unfused_activation_forward_bytes;
    const double bias = backward ? k.unfused_bias_backward_bytes : k.unfused_bias_forward_bytes;
    return w_.memory(OpKind::kActivation,
                     shape_.all_rows() * (activation * f(shape_.ffn) + bias * f(row_width())),
                     backward ? k.unfused_backward_kernels : k.unfused_forward_kernels,
                     w_.stack().copies.add);
  }

  void activation(bool backward) {
    if (fused_) return;
    const Op op = unfused() ? unfused_activation(backward)
                            : w_.elementwise(OpKind::kActivation, w_.activation(),
                                             shape_.all_rows() * f(shape_.ffn), backward);
    add_dynamic(backward ? with(op, {kDExpertActivation, kExpertUp}, {kDExpertUp})
                         : with(op, {kExpertUp}, {kExpertActivation}));
  }

  Product shared_up() const {
    return {OpKind::kUpProjection,
            Weight::kSharedUp,
            (w_.model().gated_mlp ? 2 : 1) * shape_.shared_ffn,
            w_.shape().hidden,
            w_.gathered_norm(true),
            kSharedUp,
            kDSharedUp,
            kDNormSum,
            false};
  }
  Product shared_down() const {
    return {OpKind::kDownProjection, Weight::kSharedDown, w_.shape().hidden,
            shape_.shared_ffn,       kSharedActivation,   kDown,
            of_next_unit(kDX),       kDSharedActivation,  false};
  }

  void add_shared(Operand from, Operand to) {
    add(w_.memory(OpKind::kAccumulate, 3 * f(w_.width()) * shape_.tokens * f(w_.shape().hidden), 1,
                  w_.stack().copies.add, {from}, {to}));
  }

  Op shared_activation(bool backward) const {
    return w_.elementwise(OpKind::kActivation, w_.activation(), w_.elements(shape_.shared_ffn),
                          backward);
  }

  void shared_forward() {
    if (shape_.shared_ffn == 0) return;
    w_.column_forward(list_, {shared_up()}, true, Overlap::kNone);
    add(with(shared_activation(false), {kSharedUp}, {kSharedActivation}));
    w_.row_forward(list_, shared_down());
    add_shared(kDown, kExpertsOut);
  }

  void shared_backward() {
    if (shape_.shared_ffn == 0) return;
    w_.row_backward(list_, shared_down(), Overlap::kNone);
    add(with(shared_activation(true), {kDSharedActivation, kSharedUp}, {kDSharedUp}));
    Product up = shared_up();
    w_.reduce_after(list_, w_.input_gradient(up));
    if (!w_.keeps_gathered()) up.in = w_.norm_output(true);
    add(w_.weight_gradient_of(up));
    add_shared(kDNormSum, kNone);
  }

  const ProgramWriter& w_;
  Ops& list_;
  ExpertShape shape_;
  Dispatcher dispatcher_;
  bool fused_;
};

}  // namespace

Dispatcher dispatcher_of(const Plan& plan, const Stack& stack) {
  return plan.parallel.dispatcher.value_or(profiles::usual_dispatcher(stack));
}

double load_gini(const Model& model, Routing routing, const MoeSoftware& moe) {
  if (routing == Routing::kUnaided) return moe.no_aux_loss_gini;
  if (routing != Routing::kReal) return 0;
  // GPT-OSS learns the router's bias as it does all of its products'.
  if (model.experts.router_bias && !model.experts.bias) return moe.bias_balanced_load_gini;
  if (model.latent.kv_rank > 0) return moe.latent_load_gini;
  return model.kv_heads < model.heads ? moe.grouped_query_load_gini : moe.multi_head_load_gini;
}

BusiestRank busiest_of(const Model& model, const Plan& plan, const Stack& stack) {
  const ExpertLoad load = plan.parallel.expert_load.value_or(ExpertLoad{});
  if (load.layers) return busiest_rank(*load.layers, plan.parallel.ep);
  return busiest_rank(load_gini(model, load.routing, stack.parallel.moe), model.experts.count,
                      plan.parallel.ep, model.expert_layers());
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
  const BusiestRank busiest = s.dropless ? busiest_of(model, plan, stack) : BusiestRank{};
  const double routed = s.tokens * f(e.per_token) * f(p.etp);
  s.busiest = busiest.of_layer;
  s.rows = whole((s.dropless ? busiest.of_layer : capacity) * routed / f(s.local_experts));
  s.kept_rows = s.dropless ? busiest.of_layers * routed : s.all_rows();
  return s;
}

void expert_forward(const ProgramWriter& writer, Ops& list) {
  ExpertWriter(writer, list).forward();
}

void expert_backward(const ProgramWriter& writer, Ops& list) {
  ExpertWriter(writer, list).backward();
}

}  // namespace shardwright::sim
