// SPDX-License-Identifier: Apache-2.0
#include "sim/program/layer_program.h"

#include <algorithm>

#include "sim/core/check.h"
#include "sim/core/workspace.h"

namespace shardwright::sim {

namespace {

Bytes to_bytes(double value) {
  return static_cast<Bytes>(value);
}

}  // namespace

/// Writes the dataflow programs of one model, plan shape and stack.
class ProgramBuilder {
 public:
  ProgramBuilder(const Model& model, const Plan& plan, const Stack& stack, LayerPrograms& out)
      : model_(model),
        plan_(plan),
        stack_(stack),
        out_(out),
        tensors_(out.tensors_),
        tokens_(plan.micro_batch * plan.seq_len),
        width_(bytes_of(plan.param_dtype)) {
    size_tensors();
    build_embedding();
    build_layer();
    build_head();
  }

 private:
  struct Product {
    OpKind kind;
    std::int64_t n, k;  // output and input features
    std::uint16_t in, out, d_out, d_in;
    bool bias;
  };

  void tensor(Tensor slot, double bytes, MemoryCategory category = MemoryCategory::kActivations) {
    tensors_[slot] = {to_bytes(bytes), category};
  }

  void size_tensors() {
    const double t = static_cast<double>(tokens_);
    const double w = static_cast<double>(width_);
    const double c = static_cast<double>(model_.hidden);
    const double q = static_cast<double>(model_.q_dim());
    const double kv = static_cast<double>(model_.kv_dim());
    const double f = static_cast<double>(model_.ffn);
    const double logits = t * static_cast<double>(model_.vocab);
    tensor(kTokens, 8 * t);
    for (Tensor slot :
         {kX, kXMid, kNorm1Out, kNorm2Out, kProjected, kDown, kDX, kDXMid, kDNorm1, kDNorm2}) {
      tensor(slot, w * t * c);
    }
    for (int i = 0; i < 3; ++i) {
      const std::size_t index = static_cast<std::size_t>(i);
      const double saved =
          index < stack_.norm.saved_bytes.size() ? stack_.norm.saved_bytes[index] * t * c : 0;
      const double statistics = i == 2 ? stack_.norm.saved_bytes_per_token * t : 0;
      tensor(static_cast<Tensor>(kNorm1Saved0 + i), saved + statistics);
      tensor(static_cast<Tensor>(kNorm2Saved0 + i), saved + statistics);
    }
    tensor(kQkv, w * t * (q + 2 * kv));
    tensor(kQRaw, w * t * q);
    tensor(kKRaw, w * t * kv);
    tensor(kQ, w * t * q);
    tensor(kK, w * t * kv);
    tensor(kV, w * t * kv);
    tensor(kKRepeated, w * t * q);
    tensor(kVRepeated, w * t * q);
    const double scores = static_cast<double>(plan_.micro_batch * model_.heads * plan_.seq_len) *
                          static_cast<double>(plan_.seq_len);
    tensor(kProbabilities, (4 + w) * scores);
    tensor(kAttentionOut, w * t * q);
    tensor(kAttentionStats, 4 * t * static_cast<double>(model_.heads));
    tensor(kQkNormSaved, stack_.norm.saved_bytes_per_token * t *
                             static_cast<double>(model_.heads + model_.kv_heads));
    tensor(kGateUp, w * t * 2 * f);
    tensor(kGate, w * t * f);
    tensor(kUp, w * t * f);
    const KernelGroup& act = activation();
    for (int i = 0; i < 2; ++i) {
      const std::size_t index = static_cast<std::size_t>(i);
      tensor(static_cast<Tensor>(kActivationSaved0 + i),
             index < act.saved_bytes.size() ? act.saved_bytes[index] * t * f : 0);
      tensor(static_cast<Tensor>(kLossSaved0 + i),
             index < stack_.loss.saved_bytes.size() ? stack_.loss.saved_bytes[index] * logits : 0,
             MemoryCategory::kLoss);
    }
    tensor(kActivationOut, w * t * f);
    tensor(kDActivation, w * t * f);
    tensor(kDGateUp, w * t * f * (model_.gated_mlp ? 2 : 1));
    tensor(kDAttention, w * t * q);
    tensor(kDQkv, w * t * (q + 2 * kv));
    tensor(kLogits, w * logits, MemoryCategory::kLoss);
    tensor(kLogitsFloat, 4 * logits, MemoryCategory::kLoss);
    tensor(kDLogits, w * logits, MemoryCategory::kLoss);
    tensor(kDLogitsFloat, 4 * logits, MemoryCategory::kLoss);
  }

  const KernelGroup& activation() const {
    return model_.gated_mlp ? stack_.gated_activation : stack_.plain_activation;
  }
  bool fused_qkv() const { return model_.fused_qkv || stack_.fused_qkv; }
  bool fused_gate_up() const {
    return model_.gated_mlp && (model_.fused_gate_up || stack_.fused_gate_up);
  }

  // Operations
  // ------------------------------------------------------------------------------------------

  static ProgramOp make(OpKind kind, Phase phase, std::initializer_list<std::uint16_t> in,
                        std::initializer_list<std::uint16_t> out) {
    ProgramOp p;
    p.op.kind = kind;
    p.op.phase = phase;
    std::size_t i = 0;
    for (std::uint16_t t : in) {
      if (t != kNoTensor) p.in[i++] = t;
    }
    i = 0;
    for (std::uint16_t t : out) {
      if (t != kNoTensor) p.out[i++] = t;
    }
    return p;
  }

  static Work memory_work(double bytes, int kernels, double efficiency) {
    Work work;
    work.kind = WorkKind::kMemory;
    work.bytes = to_bytes(bytes);
    work.kernels = static_cast<std::uint16_t>(std::max(kernels, 1));
    work.efficiency = efficiency;
    return work;
  }

  /// Stacks count the traffic of 2-byte elements.
  double traffic(double bytes) const { return bytes * static_cast<double>(width_) / 2; }

  Work gemm_work(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t times = 1) const {
    Work work;
    work.kind = WorkKind::kGemm;
    work.m = m;
    work.n = n;
    work.k = k;
    work.kernels = static_cast<std::uint16_t>(times);
    work.dtype_bytes = static_cast<std::uint8_t>(width_);
    work.efficiency = stack_.gemm_efficiency;
    return work;
  }

  ProgramOp elementwise(OpKind kind, Phase phase, const KernelGroup& group, double elements,
                        bool backward, std::initializer_list<std::uint16_t> in,
                        std::initializer_list<std::uint16_t> out) const {
    ProgramOp p = make(kind, phase, in, out);
    if (backward) {
      p.op.work = memory_work(traffic(elements * group.backward_bytes), group.backward_kernels,
                              group.backward_efficiency);
      p.temporary_bytes = to_bytes(elements * group.backward_temporary_bytes);
    } else {
      p.op.work = memory_work(traffic(elements * group.forward_bytes), group.forward_kernels,
                              group.forward_efficiency);
      p.temporary_bytes = to_bytes(elements * group.forward_temporary_bytes);
    }
    p.op.work.dtype_bytes = static_cast<std::uint8_t>(width_);
    return p;
  }

  ProgramOp product_forward(const Product& product) const {
    ProgramOp p = make(product.kind, Phase::kForward, {product.in}, {product.out});
    p.op.work = gemm_work(tokens_, product.n, product.k);
    return p;
  }

  /// Appends input gradient, weight gradient and, with a bias, its reduction. Later products that
  /// share an input add their input gradient to the first one's.
  void product_backward(std::vector<ProgramOp>& list, const Product& product,
                        bool adds_to_input_gradient) {
    ProgramOp dgrad = make(OpKind::kInputGradient, Phase::kBackward, {product.d_out},
                           {adds_to_input_gradient ? std::uint16_t{kNoTensor} : product.d_in});
    dgrad.op.of = product.kind;
    dgrad.op.work = gemm_work(tokens_, product.k, product.n);
    if (adds_to_input_gradient) dgrad.temporary_bytes = tensors_[slot_of(product.d_in)].bytes;
    list.push_back(dgrad);
    const auto slot = static_cast<std::uint16_t>(kWeightGradient0 + weight_gradients_++);
    SHARDWRIGHT_CHECK(slot <= kWeightGradientLast, "more weight gradients than slots");
    size_weight_gradient(slot, product.n * product.k);
    ProgramOp wgrad =
        make(OpKind::kWeightGradient, Phase::kBackward, {product.d_out, product.in}, {slot});
    wgrad.op.of = product.kind;
    wgrad.op.work = gemm_work(product.n, product.k, tokens_);
    list.push_back(wgrad);
    const double features = static_cast<double>(tokens_ * width_);
    if (product.bias) {
      ProgramOp bias = make(OpKind::kAccumulate, Phase::kBackward, {product.d_out}, {});
      bias.op.of = product.kind;
      bias.op.work = memory_work(features * static_cast<double>(product.n), 1, 1.0);
      list.push_back(bias);
    }
    if (adds_to_input_gradient) {
      ProgramOp add = make(OpKind::kAccumulate, Phase::kBackward, {product.d_in}, {});
      add.op.work = memory_work(3 * features * static_cast<double>(product.k), 1, 1.0);
      list.push_back(add);
    }
  }

  /// Static stacks write weight gradients straight into the strategy's gradient buffer.
  void size_weight_gradient(std::uint16_t slot, std::int64_t elements) {
    const bool in_place = stack_.memory == MemoryManager::kStatic;
    tensors_[slot] = {in_place ? 0 : elements * width_, MemoryCategory::kGradientBuffers};
  }

  ProgramOp attention(Phase phase, bool backward) const {
    const bool flash = plan_.attention == AttentionKind::kFlash;
    const std::uint16_t k =
        stack_.repeats_kv_heads && repeats() ? kKRepeated : (fused_without_rope() ? kNoTensor : kK);
    const std::uint16_t v =
        stack_.repeats_kv_heads && repeats() ? kVRepeated : (fused_without_rope() ? kNoTensor : kV);
    const std::uint16_t q = fused_without_rope() ? kQkv : kQ;
    const std::uint16_t extra = flash ? kAttentionStats : kProbabilities;
    ProgramOp p = backward ? make(OpKind::kAttention, phase,
                                  {q, k, v, kAttentionOut, extra, kDAttention}, {kDQkv})
                           : make(OpKind::kAttention, phase, {q, k, v}, {kAttentionOut, extra});
    p.op.work.kind = WorkKind::kAttention;
    p.op.work.m = plan_.micro_batch * model_.heads;
    p.op.work.n = plan_.seq_len;
    p.op.work.k = model_.head_dim;
    p.op.work.backward = backward;
    p.op.work.causal = true;
    p.op.work.dtype_bytes = static_cast<std::uint8_t>(width_);
    if (!flash) {
      // Two batched products plus passes over the score matrix; flagged by bytes > 0.
      const double scores = static_cast<double>(plan_.micro_batch * model_.heads * plan_.seq_len) *
                            static_cast<double>(plan_.seq_len);
      p.op.work.bytes = to_bytes(scores * (backward ? 26 : 22));
      p.op.work.kernels = backward ? 9 : 7;
    } else if (backward) {
      p.temporary_bytes =
          stack_.memory == MemoryManager::kStatic
              ? attention_workspace_bytes(plan_.micro_batch, plan_.seq_len, model_.heads,
                                          model_.kv_heads, model_.head_dim, plan_.param_dtype)
              : 4 * tokens_ * model_.q_dim();  // fp32 accumulator of dQ
    }
    return p;
  }

  bool repeats() const { return model_.kv_heads < model_.heads; }
  bool has_rope() const { return model_.position == Position::kRope; }
  /// q, k and v are read straight out of the packed product.
  bool fused_without_rope() const { return fused_qkv(); }

  // Layers
  // ----------------------------------------------------------------------------------------------

  ProgramOp norm(Phase phase, bool second, bool backward) const {
    const double elements = static_cast<double>(tokens_ * model_.hidden);
    const std::uint16_t saved = second ? kNorm2Saved0 : kNorm1Saved0;
    const std::uint16_t in = second ? kXMid : kX;
    std::array<std::uint16_t, 3> kept{};
    for (std::uint16_t i = 0; i < 3; ++i)
      kept[i] = tensors_[saved + i].bytes > 0 ? static_cast<std::uint16_t>(saved + i) : 0;
    const std::uint16_t input = stack_.norm_saves_input ? in : std::uint16_t{kNoTensor};
    ProgramOp p = backward
                      ? elementwise(OpKind::kNorm, phase, stack_.norm, elements, true,
                                    {second ? kDNorm2 : kDNorm1, kept[0], kept[1], kept[2], input},
                                    {second ? kDXMid : kDX})
                      : elementwise(OpKind::kNorm, phase, stack_.norm, elements, false, {in},
                                    {second ? kNorm2Out : kNorm1Out, kept[0], kept[1], kept[2]});
    p.op.part = second ? 1 : 0;
    return p;
  }

  /// Norm of query and key heads inside the packed product. It works in place, so what backward
  /// needs, the heads as they were, is put aside.
  ProgramOp packed_qk_norm(double q_and_k) const {
    ProgramOp p = elementwise(OpKind::kQkNorm, Phase::kForward, stack_.norm, q_and_k, false, {kQkv},
                              {kQRaw, kKRaw, kQkNormSaved});
    p.op.work.bytes += to_bytes(q_and_k * static_cast<double>(width_));
    return p;
  }

  std::vector<Product> qkv_products() const {
    const std::int64_t c = model_.hidden;
    if (fused_qkv()) {
      return {{OpKind::kQkvProjection, model_.q_dim() + 2 * model_.kv_dim(), c, kNorm1Out, kQkv,
               kDQkv, kDNorm1, model_.qkv_bias}};
    }
    const std::uint16_t q = has_rope() || model_.qk_norm ? kQRaw : kQ;
    const std::uint16_t k = has_rope() || model_.qk_norm ? kKRaw : kK;
    return {
        {OpKind::kQProjection, model_.q_dim(), c, kNorm1Out, q, kDQkv, kDNorm1, model_.qkv_bias},
        {OpKind::kKProjection, model_.kv_dim(), c, kNorm1Out, k, kDQkv, kDNorm1, model_.qkv_bias},
        {OpKind::kVProjection, model_.kv_dim(), c, kNorm1Out, kV, kDQkv, kDNorm1, model_.qkv_bias}};
  }

  std::vector<Product> mlp_products() const {
    const std::int64_t c = model_.hidden;
    const std::int64_t f = model_.ffn;
    if (fused_gate_up()) {
      return {{OpKind::kGateUpProjection, 2 * f, c, kNorm2Out, kGateUp, kDGateUp, kDNorm2,
               model_.mlp_bias}};
    }
    std::vector<Product> products;
    if (model_.gated_mlp) {
      products.push_back(
          {OpKind::kGateProjection, f, c, kNorm2Out, kGate, kDGateUp, kDNorm2, model_.mlp_bias});
    }
    products.push_back(
        {OpKind::kUpProjection, f, c, kNorm2Out, kUp, kDGateUp, kDNorm2, model_.mlp_bias});
    return products;
  }

  std::vector<ProgramOp> layer_forward_ops() const {
    std::vector<ProgramOp> list;
    const double q_and_k = static_cast<double>(tokens_ * (model_.q_dim() + model_.kv_dim()));
    const double hidden = static_cast<double>(tokens_ * model_.hidden);
    const bool adds = stack_.residual.forward_kernels > 0;
    list.push_back(norm(Phase::kForward, false, false));
    for (const Product& p : qkv_products()) list.push_back(product_forward(p));
    if (model_.qk_norm) {
      list.push_back(fused_qkv()
                         ? packed_qk_norm(q_and_k)
                         : elementwise(OpKind::kQkNorm, Phase::kForward, stack_.norm, q_and_k,
                                       false, {kQRaw, kKRaw},
                                       {has_rope() ? kNoTensor : kQ, has_rope() ? kNoTensor : kK}));
    }
    if (has_rope()) {
      list.push_back(fused_qkv() ? elementwise(OpKind::kRope, Phase::kForward, stack_.rope, q_and_k,
                                               false, {kQkv}, {})
                                 : elementwise(OpKind::kRope, Phase::kForward, stack_.rope, q_and_k,
                                               false, {kQRaw, kKRaw}, {kQ, kK}));
    }
    if (stack_.repeats_kv_heads && repeats()) {
      ProgramOp repeat =
          make(OpKind::kCopyOut, Phase::kForward,
               {fused_qkv() ? kQkv : kK, fused_qkv() ? kNoTensor : kV}, {kKRepeated, kVRepeated});
      repeat.op.work = memory_work(
          static_cast<double>(2 * width_ * tokens_ * (model_.kv_dim() + model_.q_dim())), 2,
          stack_.copies.copy);
      list.push_back(repeat);
    }
    list.push_back(attention(Phase::kForward, false));
    const Product o{
        OpKind::kOutputProjection, model_.hidden, model_.q_dim(), kAttentionOut,
        adds ? kProjected : kXMid, kDXMid,        kDAttention,    model_.attention_out_bias};
    list.push_back(product_forward(o));
    if (adds) {
      list.push_back(elementwise(OpKind::kResidual, Phase::kForward, stack_.residual, hidden, false,
                                 {kX, kProjected}, {kXMid}));
    } else {
      list.back().in[1] = kX;
    }
    list.push_back(norm(Phase::kForward, true, false));
    for (const Product& p : mlp_products()) list.push_back(product_forward(p));
    const double ffn = static_cast<double>(tokens_ * model_.ffn);
    const std::uint16_t s0 = tensors_[kActivationSaved0].bytes > 0 ? kActivationSaved0 : kNoTensor;
    const std::uint16_t s1 = tensors_[kActivationSaved1].bytes > 0 ? kActivationSaved1 : kNoTensor;
    list.push_back(elementwise(
        OpKind::kActivation, Phase::kForward, activation(), ffn, false,
        {fused_gate_up() ? kGateUp : kUp, fused_gate_up() || !model_.gated_mlp ? kNoTensor : kGate},
        {kActivationOut, s0, s1}));
    const std::uint16_t x_out = kX | kNextUnit;
    const Product down{OpKind::kDownProjection,
                       model_.hidden,
                       model_.ffn,
                       kActivationOut,
                       adds ? std::uint16_t{kDown} : x_out,
                       kDX | kNextUnit,
                       kDActivation,
                       model_.mlp_bias};
    list.push_back(product_forward(down));
    if (adds) {
      list.push_back(elementwise(OpKind::kResidual, Phase::kForward, stack_.residual, hidden, false,
                                 {kXMid, kDown}, {x_out}));
    } else {
      list.back().in[1] = kXMid;
    }
    return list;
  }

  std::vector<ProgramOp> layer_backward_ops() {
    std::vector<ProgramOp> list;
    weight_gradients_ = 0;
    const double hidden = static_cast<double>(tokens_ * model_.hidden);
    const double ffn = static_cast<double>(tokens_ * model_.ffn);
    const double q_and_k = static_cast<double>(tokens_ * (model_.q_dim() + model_.kv_dim()));
    const std::uint16_t d_out = kDX | kNextUnit;
    const Product down{OpKind::kDownProjection,
                       model_.hidden,
                       model_.ffn,
                       kActivationOut,
                       kDown,
                       d_out,
                       kDActivation,
                       model_.mlp_bias};
    product_backward(list, down, false);
    const std::uint16_t s0 = tensors_[kActivationSaved0].bytes > 0 ? kActivationSaved0 : kNoTensor;
    const std::uint16_t s1 = tensors_[kActivationSaved1].bytes > 0 ? kActivationSaved1 : kNoTensor;
    list.push_back(elementwise(OpKind::kActivation, Phase::kBackward, activation(), ffn, true,
                               {kDActivation, fused_gate_up() ? kGateUp : kUp,
                                fused_gate_up() || !model_.gated_mlp ? kNoTensor : kGate, s0, s1},
                               {kDGateUp}));
    std::vector<Product> mlp = mlp_products();
    std::reverse(mlp.begin(), mlp.end());
    for (std::size_t i = 0; i < mlp.size(); ++i) product_backward(list, mlp[i], i > 0);
    list.push_back(norm(Phase::kBackward, true, true));
    // The residual path joins: dXMid += dXout.
    add_residual_gradient(list, hidden, d_out, kDXMid);
    const Product o{OpKind::kOutputProjection,
                    model_.hidden,
                    model_.q_dim(),
                    kAttentionOut,
                    kProjected,
                    kDXMid,
                    kDAttention,
                    model_.attention_out_bias};
    product_backward(list, o, false);
    list.push_back(attention(Phase::kBackward, true));
    if (stack_.repeats_kv_heads && repeats()) {
      ProgramOp reduce = make(OpKind::kAccumulate, Phase::kBackward, {kDQkv}, {});
      reduce.op.work = memory_work(
          static_cast<double>(2 * width_ * tokens_ * (model_.kv_dim() + model_.q_dim())), 2,
          stack_.copies.copy);
      reduce.temporary_bytes = 2 * width_ * tokens_ * model_.q_dim();
      list.push_back(reduce);
    }
    if (has_rope())
      list.push_back(
          elementwise(OpKind::kRope, Phase::kBackward, stack_.rope, q_and_k, true, {kDQkv}, {}));
    if (model_.qk_norm) {
      list.push_back(fused_qkv()
                         ? elementwise(OpKind::kQkNorm, Phase::kBackward, stack_.norm, q_and_k,
                                       true, {kDQkv, kQRaw, kKRaw, kQkNormSaved}, {})
                         : elementwise(OpKind::kQkNorm, Phase::kBackward, stack_.norm, q_and_k,
                                       true, {kDQkv, kQRaw, kKRaw}, {}));
    }
    std::vector<Product> qkv = qkv_products();
    std::reverse(qkv.begin(), qkv.end());
    for (std::size_t i = 0; i < qkv.size(); ++i) product_backward(list, qkv[i], i > 0);
    list.push_back(norm(Phase::kBackward, false, true));
    add_residual_gradient(list, hidden, kDXMid, kDX);
    return list;
  }

  void add_residual_gradient(std::vector<ProgramOp>& list, double elements, std::uint16_t from,
                             std::uint16_t into) const {
    if (stack_.residual.backward_kernels == 0 || stack_.residual.backward_bytes <= 0) {
      // Fused into the norm's backward, which then reads the residual gradient too.
      for (std::uint16_t& t : list.back().in) {
        if (t == kNoTensor) {
          t = from;
          break;
        }
      }
      return;
    }
    list.push_back(elementwise(OpKind::kResidual, Phase::kBackward, stack_.residual, elements, true,
                               {from, into}, {}));
  }

  void build_layer() {
    const std::vector<ProgramOp> forward = layer_forward_ops();
    const std::vector<ProgramOp> backward = layer_backward_ops();
    TensorSet produced;
    for (const ProgramOp& p : forward) {
      for (std::uint16_t t : p.out) {
        if (!(t & kNextUnit)) produced.set(t);
      }
    }
    produced.set(kX);
    TensorSet needed;
    for (const ProgramOp& p : backward) {
      for (std::uint16_t t : p.in) {
        if (!(t & kNextUnit) && produced.test(t)) needed.set(t);
      }
    }
    needed.reset(kNoTensor);
    for (int checkpointed = 0; checkpointed < 2; ++checkpointed) {
      const TensorSet kept =
          checkpointed != 0 ? kept_tensors(model_, plan_, forward, needed, tensors_) : needed;
      out_.layer_forward_[checkpointed] =
          with_lifetimes(forward, tensors_, TensorSet{}, kept, false);
      std::vector<ProgramOp> both = recomputation(forward, needed, kept);
      both.insert(both.end(), backward.begin(), backward.end());
      out_.layer_backward_[checkpointed] = with_lifetimes(both, tensors_, kept, TensorSet{}, true);
    }
  }

  // Embedding and head
  // ----------------------------------------------------------------------------------

  void build_embedding() {
    const double hidden = static_cast<double>(tokens_ * model_.hidden);
    const std::vector<ProgramOp> forward = {elementwise(OpKind::kEmbedding, Phase::kForward,
                                                        stack_.embedding, hidden, false, {},
                                                        {kX | kNextUnit})};
    out_.embedding_forward_ = with_lifetimes(forward, tensors_, TensorSet{}, TensorSet{}, false);
    const std::int64_t rows =
        model_.vocab + (model_.position == Position::kLearned ? model_.max_positions : 0);
    size_weight_gradient(kWeightGradient0, rows * model_.hidden);
    ProgramOp backward = elementwise(OpKind::kEmbedding, Phase::kBackward, stack_.embedding, hidden,
                                     true, {kDX | kNextUnit}, {kWeightGradient0});
    backward.op.work.bytes +=
        rows * model_.hidden * width_;  // the dense gradient is filled with zeros first
    out_.embedding_backward_ = with_lifetimes({backward}, tensors_, TensorSet{}, TensorSet{}, true);
  }

  void build_head() {
    const double logits = static_cast<double>(tokens_) * static_cast<double>(model_.vocab);
    weight_gradients_ = 0;
    const Product head{OpKind::kHeadProjection,
                       model_.vocab,
                       model_.hidden,
                       kNorm1Out,
                       kLogits,
                       kDLogits,
                       kDNorm1,
                       false};
    const bool chunked = stack_.loss_chunk_tokens > 0;
    TensorSet kept;
    for (std::uint16_t i = 0; i < 3; ++i) {
      if (tensors_[kNorm1Saved0 + i].bytes > 0) kept.set(kNorm1Saved0 + i);
    }
    kept.set(kNorm1Out);
    if (stack_.norm_saves_input) kept.set(kX);
    std::vector<ProgramOp> forward = {norm(Phase::kForward, false, false)};
    std::vector<ProgramOp> backward;
    if (chunked) {
      chunked_loss(backward, head, logits);
    } else {
      forward.push_back(product_forward(head));
      const std::uint16_t s0 = tensors_[kLossSaved0].bytes > 0 ? kLossSaved0 : kNoTensor;
      const std::uint16_t s1 = tensors_[kLossSaved1].bytes > 0 ? kLossSaved1 : kNoTensor;
      std::uint16_t loss_in = kLogits;
      if (stack_.loss_upcasts_logits) {
        ProgramOp upcast = make(OpKind::kLoss, Phase::kLoss, {kLogits}, {kLogitsFloat});
        upcast.op.work =
            memory_work(logits * static_cast<double>(width_ + 4), 1, stack_.copies.cast);
        forward.push_back(upcast);
        loss_in = kLogitsFloat;
      }
      forward.push_back(elementwise(OpKind::kLoss, Phase::kLoss, stack_.loss, logits, false,
                                    {loss_in}, {s0, s1}));
      forward.back().op.part = 1;
      if (s0) kept.set(s0);
      if (s1) kept.set(s1);
      if (stack_.loss_upcasts_logits) {
        // The fp32 gradient of the logits is cast once what produced it has been freed.
        backward.push_back(elementwise(OpKind::kLoss, Phase::kBackward, stack_.loss, logits, true,
                                       {s0, s1}, {kDLogitsFloat}));
        ProgramOp cast = make(OpKind::kLoss, Phase::kBackward, {kDLogitsFloat}, {kDLogits});
        cast.op.part = 1;
        cast.op.work = memory_work(logits * static_cast<double>(width_ + 4), 1, stack_.copies.cast);
        backward.push_back(cast);
      } else {
        backward.push_back(elementwise(OpKind::kLoss, Phase::kBackward, stack_.loss, logits, true,
                                       {s0, s1}, {kDLogits}));
      }
      product_backward(backward, head, false);
    }
    backward.push_back(norm(Phase::kBackward, false, true));
    out_.head_forward_ = with_lifetimes(forward, tensors_, TensorSet{}, kept, false);
    out_.head_backward_ = with_lifetimes(backward, tensors_, kept, TensorSet{}, true);
  }

  /// Loss over chunks of tokens: logits of a chunk, their gradient in place, both products, then
  /// the next chunk.
  void chunked_loss(std::vector<ProgramOp>& list, const Product& head, double logits) {
    const std::int64_t chunk =
        std::min<std::int64_t>(tokens_, static_cast<std::int64_t>(stack_.loss_chunk_tokens));
    const std::int64_t chunks = (tokens_ + chunk - 1) / chunk;
    // Room for one row in fp32: a device that keeps logits so takes smaller chunks.
    tensor(kLogits, static_cast<double>(std::max<std::int64_t>(width_ * chunk, 4) * model_.vocab),
           MemoryCategory::kLoss);
    ProgramOp project = make(OpKind::kHeadProjection, Phase::kLoss, {kNorm1Out}, {kLogits});
    project.op.work = gemm_work(chunk, head.n, head.k, chunks);
    list.push_back(project);
    list.push_back(
        elementwise(OpKind::kLoss, Phase::kLoss, stack_.loss, logits, true, {kLogits}, {}));
    list.back().op.work.bytes += to_bytes(traffic(logits * stack_.loss.forward_bytes));
    ProgramOp dgrad = make(OpKind::kInputGradient, Phase::kBackward, {kLogits}, {kDNorm1});
    dgrad.op.of = head.kind;
    dgrad.op.work = gemm_work(chunk, head.k, head.n, chunks);
    list.push_back(dgrad);
    size_weight_gradient(kWeightGradient0, head.n * head.k);
    ProgramOp wgrad =
        make(OpKind::kWeightGradient, Phase::kBackward, {kLogits, kNorm1Out}, {kWeightGradient0});
    wgrad.op.of = head.kind;
    wgrad.op.work = gemm_work(head.n, head.k, chunk, chunks);
    list.push_back(wgrad);
  }

  const Model& model_;
  const Plan& plan_;
  const Stack& stack_;
  LayerPrograms& out_;
  ProgramTensors& tensors_;
  std::int64_t tokens_;
  std::int64_t width_;
  int weight_gradients_ = 0;
};

LayerPrograms::LayerPrograms(const Model& model, const Plan& plan, const Stack& stack) {
  ProgramBuilder(model, plan, stack, *this);
}

}  // namespace shardwright::sim
