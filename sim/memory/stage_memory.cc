// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/stage_memory.h"

#include <algorithm>
#include <numeric>

#include "sim/core/strategy.h"
#include "sim/memory/optimizer_state.h"
#include "sim/program/adapters.h"
#include "sim/program/expert_program.h"
#include "sim/program/loss_chunk.h"
#include "sim/program/low_precision.h"
#include "sim/program/real.h"
#include "sim/schedules/stage_actions.h"

namespace shardwright::sim {
namespace {

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

bool piece(const Plan& plan, RecomputePiece which) {
  return plan.recompute == Recompute::kPieces && (plan.pieces & which) != 0;
}

/// What is kept for backward of one layer, by the parts that can run again.
struct Parts {
  double input = 0;  // of the layer
  double norms = 0, norm_outputs = 0;
  double qkv = 0, scores = 0, attention_out = 0;
  double latents = 0;  // of latent attention, and their norms' outputs
  double gate_up = 0, activation = 0, other = 0;
  double dispatched = 0, shared = 0, router = 0;
  double all() const {
    return norms + norm_outputs + qkv + scores + attention_out + latents + gate_up + activation +
           dispatched + shared + router + other;
  }
};

/// What layers with experts keep in place of an MLP: scores of the router, rows as they arrived,
/// what FC1 and the activation put out, the shared experts' inner tensors.
void add_experts(const ProgramWriter& w, Parts& p) {
  const ExpertShape e = expert_shape(w.model(), w.plan(), w.stack());
  const double width = f(w.width()), saved = saved_input_bytes(w.plan());
  const double gates = w.model().gated_mlp ? 2 : 1;
  p.gate_up = width * gates * e.all_rows() * f(e.ffn);
  p.activation = saved * e.all_rows() * f(e.ffn);
  p.dispatched = saved * e.all_rows() * f(w.shape().hidden);
  p.shared = f(w.shape().tokens) * f(e.shared_ffn) * (width * gates + saved);
  p.router = 4 * e.tokens * f(w.model().experts.count);
}

Parts parts_of(const ProgramWriter& w, bool experts) {
  const RankShape& s = w.shape();
  const Stack& stack = w.stack();
  const Model& model = w.model();
  const double tokens = f(s.tokens), sharded = f(s.sharded_tokens), h = f(s.hidden);
  const double width = f(w.width()), saved = saved_input_bytes(w.plan());
  Parts p;
  p.input = width * sharded * h;
  p.norms = 2 * sharded *
            (sum(stack.norm.saved_bytes) * h + stack.norm.saved_bytes_per_token +
             (stack.norm_saves_input ? width * h : 0));
  p.norm_outputs = 2 * saved * (w.keeps_gathered() ? tokens : sharded) * h;
  p.qkv = width * tokens * f(s.q_dim() + 2 * s.kv_dim());
  const LatentAttention& latent = model.latent;
  if (latent.kv_rank > 0) {
    // Keys of all heads are put together anew; values are a view of the product's result.
    p.qkv = width * tokens * f(2 * s.q_dim() + s.heads * (latent.nope_dim + latent.v_dim));
    p.latents = 2 * width * sharded * f(latent.q_rank + latent.kv_rank + latent.rope_dim);
  }
  if (stack.repeats_kv_heads) p.qkv += width * tokens * 2 * f(s.q_dim() - s.kv_dim());
  // Attention keeps its output, the product after it that in fewer bits.
  p.attention_out = (width + (saved < width ? saved : 0)) * tokens * f(s.attention_out_dim());
  if (w.eager_attention()) {
    p.scores = stack.parallel.score_bytes * tokens * f(s.heads) * f(w.plan().seq_len);
  } else {
    p.scores = 4 * tokens * f(s.heads);
  }
  const KernelGroup& activation = model.gated_mlp ? stack.gated_activation : stack.plain_activation;
  p.gate_up = width * tokens * f(s.ffn) * (model.gated_mlp ? 2 : 1);
  p.activation = tokens * f(s.ffn) * (saved + sum(activation.saved_bytes));
  if (experts) add_experts(w, p);
  p.other = stack.parallel.layer_saved_bytes * sharded * h;
  return p;
}

double checkpointed(const Parts& p, const ProgramWriter& w) {
  const Plan& plan = w.plan();
  const RankShape& s = w.shape();
  if (plan.recompute == Recompute::kFull) return p.input;
  if (plan.recompute == Recompute::kSelectiveOp) {
    // torchtitan keeps attention and the results of every second product, and casts them again.
    return p.input + p.scores +
           f(w.width()) * f(s.tokens) * f(s.attention_out_dim() + s.q_dim() + s.kv_dim() + s.ffn) +
           p.input;
  }
  double kept = p.all();
  if (piece(plan, kPieceBlock)) return p.input;
  if (piece(plan, kPieceNorm)) kept -= p.norm_outputs;
  if (piece(plan, kPieceMoe) && p.dispatched > 0) {
    kept -= p.gate_up + p.activation + p.dispatched + p.shared + p.router;
  } else if (piece(plan, kPieceFfn) && p.dispatched == 0) {
    kept -= p.gate_up + p.activation;
  } else if (piece(plan, kPieceSwiglu) || piece(plan, kPieceMoeActivation)) {
    kept -= p.activation;
  }
  if (piece(plan, kPieceSharedExperts) && !piece(plan, kPieceMoe)) kept -= p.shared;
  if (piece(plan, kPieceMlaUpProjection) && p.latents > 0) kept -= p.qkv;
  if (piece(plan, kPieceAttention)) {
    kept -= p.qkv + p.scores + p.attention_out;
  } else if (piece(plan, kPieceCoreAttention) && w.eager_attention()) {
    kept -= p.scores;
  }
  return kept;
}

/// Logits that exist at once, with what loss and its gradient make of them.
double loss_bytes(const ProgramWriter& w) {
  const Stack& stack = w.stack();
  const RankShape& s = w.shape();
  const bool gathers = s.tp > 1 && !stack.parallel.vocabulary_parallel_loss;
  const double tokens = f(loss_chunk_tokens(w.plan(), stack, s.tokens));
  const double logits = tokens * f(gathers ? w.model().vocab : s.vocab);
  const double own = gathers ? f(w.width()) * tokens * f(s.vocab) : 0;
  double each = f(w.width()) + (stack.loss_upcasts_logits ? 4 : 0) + sum(stack.loss.saved_bytes) +
                stack.loss.backward_temporary_bytes;
  if (s.tp > 1 && stack.loss_upcasts_logits)
    each = std::max(each, stack.parallel.loss.separate_parts_bytes);
  return own + logits * each;
}

class StageWalk {
 public:
  StageWalk(const ProgramWriter& writer, const Plan& plan) : plan_(plan) {
    layer_ = layer_activations(writer);
    if (writer.model().is_moe()) mixed_ = layer_activations(writer, true);
    loss_ = loss_bytes(writer);
    offloaded_ = plan.offload == Offload::kActivations ? plan.offload_layers : 0;
  }

  double chunk_bytes(const ChunkContent& chunk) const {
    const double again = chunk.layers == 0 ? 0 : f(chunk.recomputed) / f(chunk.layers);
    const auto bytes = [&](const LayerActivations& layer, std::int64_t layers) {
      return f(layers) * ((1 - again) * layer.kept + again * layer.checkpoint);
    };
    const double all = bytes(layer_, chunk.layers - chunk.expert_layers) +
                       bytes(mixed_, chunk.expert_layers) +
                       f(chunk.extra_predictions) * (mixed_.kept > 0 ? mixed_ : layer_).kept;
    if (chunk.layers == 0 || offloaded_ == 0) return all;
    return all * f(std::max<std::int64_t>(0, chunk.layers - offloaded_)) / f(chunk.layers);
  }

  struct Peak {
    double activations = 0, loss = 0;
    double gradient_buffers = 0;
    double all() const { return activations + loss + gradient_buffers; }
  };

  /// `gradient_buffers`: of sharded parameters, there while a layer's backward runs.
  Peak peak(const PipelineShape& shape, const std::vector<ChunkContent>& parts, std::int32_t stage,
            double gradient_buffers) const {
    std::vector<double> bytes;
    std::vector<bool> head;
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const ChunkContent& content = of_chunk(parts, shape, {stage, c});
      bytes.push_back(chunk_bytes(content));
      head.push_back(content.head);
    }
    Peak peak;
    double live = 0;
    for (const Action& action : stage_actions(shape, stage)) {
      const auto chunk = static_cast<std::size_t>(action.chunk);
      const bool forward = action.kind == PassKind::kForward;
      if (forward) live += bytes[chunk];
      const double loss = head[chunk] && forward ? loss_ : 0;
      const bool backward = makes_input_gradient(action.kind);
      const double now = live + (backward ? std::max(layer_.working, mixed_.working) : 0);
      const Peak here{now, loss, backward ? gradient_buffers : 0};
      if (here.all() > peak.all()) peak = here;
      if (makes_weight_gradient(action.kind)) live -= bytes[chunk];
    }
    return peak;
  }

 private:
  const Plan& plan_;
  LayerActivations layer_, mixed_;  // mixed: with experts
  double loss_ = 0;
  std::int64_t offloaded_ = 0;
};

/// In-flight passes are as many with fewer micro-batches, once warm-up is over.
PipelineShape shortened(PipelineShape shape) {
  const std::int32_t most = 4 * shape.stages;
  if (shape.micro_batches > most) shape.micro_batches = most;
  return shape;
}

/// Frozen weights once, in the compute type or as they are quantized; state of the adapters alone.
void add_adapter_states(StageMemory& memory, const ChunkParameters& held, double adapters,
                        double largest_layer, const Model& model, const Plan& plan,
                        const Stack& stack, const Gpu& gpu, const Layout& layout) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  const double ranks = f(layout.group(CommGroup::kShard).size);
  const double model_parallel = strategy.shards == Sharded::kNothing ? 1 : ranks;
  const bool quantized = plan.numerics.quantize != Quantize::kNone;
  const double each =
      quantized ? quantized_weight_bytes(plan.numerics.quantize) : weight_bytes(plan, gpu);
  const double frozen = 2 * (held.embedding + held.head) + each * (held.layers + held.experts);
  if (quantized) memory.of(MemoryCategory::kWorkspace) += 2 * largest_matrix(model, plan);
  memory.of(MemoryCategory::kMaster) = f(bytes_of(plan.master_dtype)) * adapters / model_parallel;
  memory.of(MemoryCategory::kOptimizer) = moment_bytes(plan) * adapters / model_parallel;
  if (strategy.shards != Sharded::kParameters) {
    memory.of(MemoryCategory::kParameters) = frozen + 2 * adapters;
    memory.of(MemoryCategory::kGradients) = gradient_bytes(plan, stack) * adapters;
    return;
  }
  const bool gathered = layout.pp > 1 || !strategy.reshards;
  memory.of(MemoryCategory::kParameters) = frozen / ranks;
  memory.of(MemoryCategory::kGradients) = f(bytes_of(plan.reduce_dtype)) * adapters / ranks;
  const double travels = quantized ? each : 2;
  memory.of(MemoryCategory::kGatherBuffers) =
      gathered
          ? travels * (held.layers + held.experts) + 2 * (held.embedding + held.head + adapters)
          : travels * 2 * largest_layer;
}

/// The state is the host's; what is on its way is in two pieces of a layer.
void offload_states(StageMemory& memory, double largest_layer, const Plan& plan,
                    const Layout& layout) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  const double ranks = f(layout.group(CommGroup::kShard).size);
  const double model_parallel = strategy.shards == Sharded::kNothing ? 1 : ranks;
  const double master = f(bytes_of(plan.master_dtype));
  const double state = memory.of(MemoryCategory::kMaster) + memory.of(MemoryCategory::kOptimizer);
  // Sharded parameters are gathered from the compute copy that is left.
  if (strategy.shards == Sharded::kParameters && plan.numerics.lora == 0)
    memory.of(MemoryCategory::kParameters) = 2 / master * memory.of(MemoryCategory::kMaster);
  memory.of(MemoryCategory::kMaster) = memory.of(MemoryCategory::kOptimizer) = 0;
  const double pieces = 2 * (master + moment_bytes(plan)) * largest_layer / model_parallel;
  memory.of(MemoryCategory::kWorkspace) += std::min(state, pieces);
}

void add_states(StageMemory& memory, const ChunkParameters& held, double largest_layer,
                const Plan& plan, const Stack& stack, const Gpu& gpu, const Layout& layout) {
  const double parameters = held.total();
  const StrategyInfo& strategy = info_of(plan.strategy);
  const double ranks = f(layout.group(CommGroup::kShard).size);
  const double master = f(bytes_of(plan.master_dtype)), moments = moment_bytes(plan);
  // The state of experts is divided by the few ranks that hold the same.
  const double expert_ranks = f(layout.group(sharded_over(ModelUnit::kExperts)).size);
  if (strategy.shards == Sharded::kParameters) {
    const bool gathered = layout.pp > 1 || !strategy.reshards;
    const double owned = held.dense() / ranks + held.experts / expert_ranks;
    memory.of(MemoryCategory::kMaster) = master * owned;
    memory.of(MemoryCategory::kGradients) = f(bytes_of(plan.reduce_dtype)) * owned;
    memory.of(MemoryCategory::kOptimizer) = moments * owned;
    const double each = plan.numerics.fp8_params ? weight_bytes(plan, gpu) : 2;
    memory.of(MemoryCategory::kGatherBuffers) = each * (gathered ? parameters : 2 * largest_layer);
    memory.of(MemoryCategory::kGradientBuffers) =
        (2 + f(bytes_of(plan.reduce_dtype))) * largest_layer;
    return;
  }
  const double model_parallel = strategy.shards == Sharded::kNothing ? 1 : ranks;
  const double expert_divided = strategy.shards == Sharded::kNothing ? 1 : expert_ranks;
  const double owned = held.dense() / model_parallel + held.experts / expert_divided;
  memory.of(MemoryCategory::kParameters) =
      2 * (held.embedding + held.head) + weight_bytes(plan, gpu) * (held.layers + held.experts);
  memory.of(MemoryCategory::kGradients) = kept_gradient_bytes(plan, stack) * parameters;
  const GradientSoftware& gradients = stack.parallel.gradients;
  if (strategy.shards != Sharded::kNothing && plan.reduce_dtype != DType::kFp32)
    memory.of(MemoryCategory::kWorkspace) +=
        gradients.flattened_bytes * owned + gradients.bucket_bytes;
  // Masters of the type of the weights are the weights.
  memory.of(MemoryCategory::kMaster) = plan.master_dtype == plan.param_dtype ? 0 : master * owned;
  memory.of(MemoryCategory::kOptimizer) = moments * owned;
}

}  // namespace

LayerActivations layer_activations(const ProgramWriter& w, bool experts) {
  const Parts parts = parts_of(w, experts);
  const RankShape& s = w.shape();
  LayerActivations result;
  result.kept = parts.all();
  result.checkpoint = checkpointed(parts, w);
  // In the MLP's backward: gradients of output, input and the gathered input, and of what the
  // activation read and wrote.
  const ExpertShape e = expert_shape(w.model(), w.plan(), w.stack());
  const double inner = f(w.width()) * (experts ? e.all_rows() * f(e.ffn) : f(s.tokens) * f(s.ffn));
  result.working =
      3 * f(w.width()) * f(s.tokens) * f(s.hidden) + (w.model().gated_mlp ? 3 : 2) * inner;
  // Rows on their way: sent and received.
  if (experts) result.working += 2 * f(w.width()) * e.all_rows() * f(s.hidden);
  if (w.eager_attention()) {
    // Attention's backward, when that is more than the MLP's.
    result.working = std::max(result.working, w.stack().parallel.score_working_bytes * f(s.tokens) *
                                                  f(s.heads) * f(w.plan().seq_len));
  }
  if (w.plan().recompute != Recompute::kNone) {
    result.working += std::max(0.0, result.kept - result.checkpoint);
  }
  return result;
}

ChunkParameters chunk_parameters(const Model& model, const ModelUnits& units,
                                 const ChunkContent& chunk) {
  const auto held = [&](ModelUnit unit, std::int64_t times) {
    return f(times) * f(units.elements(unit));
  };
  // A module of multi-token prediction is a layer like the last one.
  const std::int64_t predictions = model.is_moe() ? chunk.extra_predictions : 0;
  const std::int64_t moe_layers = chunk.expert_layers + predictions;
  ChunkParameters result;
  result.layers = held(ModelUnit::kDenseLayer, chunk.layers - chunk.expert_layers) +
                  held(ModelUnit::kMoeLayer, moe_layers) +
                  f(predictions) * f(units.prediction_projection());
  result.experts = held(ModelUnit::kExperts, moe_layers);
  if (chunk.embedding) result.embedding = f(units.elements(ModelUnit::kEmbedding));
  if (chunk.head) {
    // A tied head is the embedding itself, or a copy of it on another stage.
    const bool copied = model.tied_head && !chunk.embedding;
    result.head = held(ModelUnit::kHead, 1) + (copied ? f(units.vocabulary()) : 0);
  }
  return result;
}

double offloaded_bytes(const Model& model, const Plan& plan, const Stack& stack,
                       const ChunkContent& chunk) {
  Plan kept = plan;
  kept.offload = Offload::kNone;
  const ProgramWriter writer(model, plan, stack);
  return StageWalk(writer, kept).chunk_bytes(chunk) - StageWalk(writer, plan).chunk_bytes(chunk);
}

int communicators(const Layout& layout) {
  int count = 1;  // the world's
  for (const CommGroup group : {CommGroup::kTensor, CommGroup::kContext, CommGroup::kPipeline,
                                CommGroup::kExpert, CommGroup::kData}) {
    if (layout.group(group).size > 1) ++count;
  }
  return count;
}

std::vector<StageMemory> stage_memory(const Model& model, const Plan& plan,
                                      const profiles::Profile& profile, const Layout& layout,
                                      const std::vector<ChunkContent>& parts) {
  const Stack& stack = profile.stack;
  const ProgramWriter writer(model, plan, stack);
  const StageWalk walk(writer, plan);
  const PipelineShape shape = shortened(pipeline_shape(plan));
  const ModelUnits units(model, plan.parallel);
  const RankShape& s = writer.shape();
  const double message = f(writer.width()) * f(s.sharded_tokens) * f(s.hidden);
  std::vector<StageMemory> result;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    StageMemory memory;
    ChunkParameters all;
    double largest = 0, adapters = 0;
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const ChunkContent& content = of_chunk(parts, shape, {stage, c});
      const ChunkParameters held = chunk_parameters(model, units, content);
      all.layers += held.layers;
      adapters += adapter_parameters(model, plan, stack, content.layers);
      all.embedding += held.embedding;
      all.head += held.head;
      all.experts += held.experts;
      if (content.layers > 0) largest = (held.layers + held.experts) / f(content.layers);
      largest = std::max({largest, held.embedding + held.head});
    }
    const Gpu& gpu = profile.cluster.gpu;
    if (plan.numerics.lora > 0) {
      add_adapter_states(memory, all, adapters, largest, model, plan, stack, gpu, layout);
    } else {
      add_states(memory, all, largest, plan, stack, gpu, layout);
    }
    if (plan.offload == Offload::kOptimizer) offload_states(memory, largest, plan, layout);
    const StageWalk::Peak peak =
        walk.peak(shape, parts, stage, memory.of(MemoryCategory::kGradientBuffers));
    memory.of(MemoryCategory::kGradientBuffers) = peak.gradient_buffers;
    memory.of(MemoryCategory::kActivations) += peak.activations;
    memory.of(MemoryCategory::kLoss) += peak.loss;
    if (shape.stages > 1) {
      const double messages = shape.interleaves() ? shape.stages : 2;
      memory.of(MemoryCategory::kWorkspace) += messages * message;
    }
    memory.allocated_bytes =
        std::accumulate(memory.breakdown_bytes.begin(), memory.breakdown_bytes.end(), 0.0);
    memory.reserved_bytes =
        memory.allocated_bytes + stack.parallel.fragmentation * (peak.activations + peak.loss);
    result.push_back(memory);
  }
  return result;
}

}  // namespace shardwright::sim
