// SPDX-License-Identifier: Apache-2.0
#include "sim/parallel/parallel_step.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "sim/core/error.h"
#include "sim/core/rack.h"
#include "sim/core/seconds.h"
#include "sim/core/strategy.h"
#include "sim/cost/to_ns.h"
#include "sim/parallel/adapters.h"
#include "sim/parallel/precision_body.h"
#include "sim/parallel/real.h"

namespace shardwright::sim {
namespace {

constexpr double kRounding = 1e-9;  // of a step, what its parts may miss by being added up

std::size_t at(CommGroup group) {
  return static_cast<std::size_t>(group);
}

/// What the plan asks for beside data parallelism in some precision; empty: nothing.
std::string beyond_precision(Plan plan) {
  plan.numerics.precision = Precision::kBf16;
  plan.numerics.fp8_recipe.reset();
  plan.numerics.fp8_params = false;
  return beyond_data_parallel(plan);
}

/// The first forward passes and the last backward ones of a stage have no pass of the other kind
/// beside them: Megatron's combined schedule of forward and backward (core/pipeline_parallel,
/// combined_1f1b) warms up with (p - 1) + (v - 1) p + 1 of m v passes in the mean of the stages.
double lonely_share(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  const double warm_up = f(p.pp - 1) + f(p.virtual_stages - 1) * f(p.pp) + 1;
  return std::min(1.0, warm_up / (f(plan.grad_accum) * f(p.virtual_stages)));
}

/// Of a stage and a micro-batch: activations to the chunk behind, gradients to the one before.
int messages_sent(const PipelineShape& shape, std::int32_t stage) {
  const auto sends = [&](const std::optional<ChunkPlace>& to) {
    return to && to->stage != stage ? 1 : 0;
  };
  int messages = 0;
  for (std::int32_t c = 0; c < shape.chunks; ++c) {
    const ChunkPlace here{stage, c};
    messages += sends(next_chunk(shape, here)) + sends(previous_chunk(shape, here));
  }
  return messages;
}

}  // namespace

void check_modelled(const Model& model, const Plan& plan, const profiles::Profile& profile) {
  const Stack& stack = profile.stack;
  const std::string lacks =
      stack.parallel.other_precisions ? beyond_precision(plan) : beyond_data_parallel(plan);
  if (!stack.parallel.supported && !lacks.empty()) {
    throw Error(
        fmt::format("{}, which the framework {} does not do, expected a stack such as "
                    "megatron-core",
                    lacks, stack.id));
  }
  if (profile.cluster.devices_per_node > 0) {
    throw Error(fmt::format("{}, but ranks of cluster {} share devices, expected a cluster of GPUs",
                            beyond_data_parallel(plan), profile.cluster.id));
  }
  const Numerics& n = plan.numerics;
  const Gpu& gpu = profile.cluster.gpu;
  if (peak_flops(gpu, n.precision) <= 0) {
    std::vector<std::string_view> has;
    for (const Precision other :
         {Precision::kBf16, Precision::kFp16, Precision::kFp8, Precision::kNvfp4}) {
      if (peak_flops(gpu, other) > 0) has.push_back(name_of(other));
    }
    throw Error(fmt::format("precision is {}, which the GPU {} lacks, expected {}",
                            name_of(n.precision), gpu.id, fmt::join(has, " or ")));
  }
  if (n.fp8_recipe == Fp8Recipe::kMxfp8 && gpu.mxfp8_gemm_share <= 0) {
    throw Error(
        fmt::format("fp8_recipe is mxfp8, whose blocks of 32 the GPU {} does not scale, expected "
                    "delayed, tensorwise, rowwise or block",
                    gpu.id));
  }
  if (n.lora > 0 && model.is_moe()) {
    throw Error(
        fmt::format("lora is {}, but adapters beside experts are not modelled, expected a "
                    "dense model",
                    n.lora));
  }
  if (model.layers < plan.parallel.pp) {
    throw Error(fmt::format("pp is {}, more than the {} layers, expected at most {}",
                            plan.parallel.pp, model.layers, model.layers));
  }
}

ParallelEngine::ParallelEngine(const Model& model, const profiles::Profile& profile)
    : model_(model), profile_(profile), costs_(profile) {}

std::vector<BodyCount> bodies_of(const ChunkContent& content) {
  // Checkpointed layers are spread over those with experts and those without.
  const std::int64_t mixed_again =
      content.layers == 0 ? 0 : content.recomputed * content.expert_layers / content.layers;
  const std::int64_t dense_again = content.recomputed - mixed_again;
  return {{BodyKind::kEmbedding, content.embedding ? 1 : 0},
          {BodyKind::kRecomputedLayer, dense_again},
          {BodyKind::kLayer, content.layers - content.expert_layers - dense_again},
          {BodyKind::kRecomputedExpertLayer, mixed_again},
          {BodyKind::kExpertLayer, content.expert_layers - mixed_again},
          {BodyKind::kPrediction, content.extra_predictions},
          {BodyKind::kHead, content.head ? 1 : 0}};
}

Body write_body(const BodyWriter& writer, BodyKind kind) {
  switch (kind) {
    case BodyKind::kEmbedding:
      return writer.embedding();
    case BodyKind::kLayer:
      return writer.layer(false);
    case BodyKind::kRecomputedLayer:
      return writer.layer(true);
    case BodyKind::kExpertLayer:
      return writer.layer(false, true);
    case BodyKind::kRecomputedExpertLayer:
      return writer.layer(true, true);
    case BodyKind::kPrediction:
      return writer.prediction();
    case BodyKind::kHead:
      break;
  }
  return writer.head();
}

ParallelEngine::Bodies ParallelEngine::time_bodies(const Plan& plan,
                                                   const std::vector<ChunkContent>& parts) {
  const BodyWriter writer(model_, plan, profile_.stack, profile_.cluster.gpu);
  Sharing beside;
  if (gathers_layers(plan, profile_.stack)) {
    constexpr double kLarge = 1e8;
    beside =
        BodyCosts::sharing(costs_.collective({CommGroup::kShard, Collective::kAllGather,
                                              Pattern::kCollective, Overlap::kFollowing, kLarge}));
    if (registers_buffers(plan, profile_, costs_.layout()))
      beside.channels = profile_.stack.parallel.gradients.registered_buffer_sms;
  }
  const auto timed = [&](const Body& body) {
    PassTimes times;
    times.forward = costs_.time(body.forward, false);
    times.backward = costs_.time(body.backward, true);
    if (!body.recompute.empty()) times.backward.add(costs_.time(body.recompute, false), 1);
    if (beside.channels > 0) {
      times.forward_beside_s = costs_.time(body.forward, false, nullptr, beside).device_s;
      times.backward_beside_s =
          costs_.time(body.backward, true, nullptr, beside).device_s +
          (body.recompute.empty() ? 0
                                  : costs_.time(body.recompute, false, nullptr, beside).device_s);
    }
    if (!profile_.stack.parallel.accumulates_in_product && plan.grad_accum > 1) {
      // Every gradient is added to the accumulated one by a kernel of its own.
      double weights = 0;
      for (const Op& op : body.backward) {
        if (op.kind == OpKind::kWeightGradient)
          weights += f(op.work.m) * f(op.work.n) * f(op.work.groups);
      }
      const double added_s = costs_.memory_s(weights * profile_.stack.gradient_accumulate_bytes,
                                             profile_.stack.copies.add);
      times.backward.device_s += added_s;
      if (times.backward_beside_s > 0) times.backward_beside_s += added_s;
    }
    return times;
  };
  Bodies bodies;
  std::array<bool, kBodyKinds> used{};
  for (const ChunkContent& content : parts) {
    for (const BodyCount& body : bodies_of(content)) {
      used[static_cast<std::size_t>(body.kind)] |= body.count > 0;
    }
  }
  for (std::size_t kind = 0; kind < kBodyKinds; ++kind) {
    if (used[kind]) bodies[kind] = timed(write_body(writer, static_cast<BodyKind>(kind)));
  }
  return bodies;
}

double ParallelEngine::deferred_head_s(const Plan& plan, const Bodies& bodies) const {
  const BodyWriter writer(model_, plan, profile_.stack, profile_.cluster.gpu);
  if (plan.parallel.pp == 1 || writer.tensor_overlap() != TensorOverlap::kUserbuffers) return 0;
  const std::int64_t most = profile_.stack.parallel.userbuffers.deferred_head_gradients;
  return f(std::min(most, plan.grad_accum)) *
         bodies[static_cast<std::size_t>(BodyKind::kHead)].backward.delayed_s;
}

/// Gathers of the next layer and reductions of the one before run beside a layer: each slows the
/// other as long as both are there.
void ParallelEngine::add_sharded_layers(const Plan& plan, const ChunkContent& content,
                                        DataParallel& data, PassTimes& times) {
  const ChunkParameters held = chunk_parameters(model_, units_, content);
  const double adapters = adapter_parameters(model_, plan, profile_.stack, content.layers);
  const double trained = adapters > 0 ? adapters : held.dense();
  const double layers = f(content.layers);
  const double gather =
      data.gather_s((held.dense() + adapters) / layers, held.experts / layers) * layers;
  const double reduce = data.reduce_s(trained / layers, held.experts / layers) * layers;
  const auto hide = [&](BodyTime& pass, double beside_s, double alone) {
    beside_s = std::max(beside_s, pass.device_s);
    const double communication = data.stretched() * alone;
    const double both = std::min(communication, beside_s);
    const double late = std::max(0.0, communication - beside_s) + alone / layers;
    pass.device_s += both * (1 - pass.device_s / beside_s) + late;
    pass.exposed_s[at(CommGroup::kData)] += late;
  };
  hide(times.forward, times.forward_beside_s, gather);
  hide(times.backward, times.backward_beside_s, gather + reduce);
}

ParallelEngine::ChunkPasses ParallelEngine::time_chunk(const Plan& plan, const Bodies& bodies,
                                                       const ChunkContent& content,
                                                       DataParallel& data) {
  ChunkPasses chunk;
  for (const BodyCount& body : bodies_of(content)) {
    if (body.count == 0) continue;
    const PassTimes& times = bodies[static_cast<std::size_t>(body.kind)];
    chunk.times.forward.add(times.forward, f(body.count));
    chunk.times.backward.add(times.backward, f(body.count));
    chunk.times.forward_beside_s += f(body.count) * times.forward_beside_s;
    chunk.times.backward_beside_s += f(body.count) * times.backward_beside_s;
  }
  if (content.head) {
    chunk.deferred_s = deferred_head_s(plan, bodies);
    chunk.times.backward.device_s -= chunk.deferred_s / f(plan.grad_accum);
    chunk.times.backward.delayed_s -= chunk.deferred_s / f(plan.grad_accum);
  }
  if (data.per_layer()) {
    add_sharded_layers(plan, content, data, chunk.times);
  } else {
    const double held = chunk_parameters(model_, units_, content).total();
    chunk.times.forward.device_s += data.cast_weights_s(held);
    chunk.times.backward.device_s += data.copied_gradients_s(held);
  }
  for (BodyTime* pass : {&chunk.times.forward, &chunk.times.backward}) {
    const double shown_s = lonely_share(plan) * pass->beside_others_s;
    pass->device_s += shown_s;
    pass->exposed_s[at(CommGroup::kExpert)] += shown_s;
  }
  if (plan.offload == Offload::kActivations) {
    // Out during forward, in during backward. Links that do both at once reach no more in all than
    // one way alone, and other micro-batches do the opposite meanwhile.
    const double bytes = offloaded_bytes(model_, plan, profile_.stack, content);
    const double way_s = bytes / profile_.cluster.gpu.pcie_bytes_per_s;
    chunk.times.forward.device_s = std::max(chunk.times.forward.device_s, way_s);
    chunk.times.backward.device_s = std::max(chunk.times.backward.device_s, way_s);
  }
  chunk.forward_s = std::max(chunk.times.forward.device_s, chunk.times.forward.host_s);
  chunk.backward_s = std::max(chunk.times.backward.device_s, chunk.times.backward.host_s);
  chunk.delayed_s = std::min(chunk.times.backward.delayed_s, chunk.backward_s);
  return chunk;
}

ReducedChunk ParallelEngine::reduced_chunk(const Plan& plan, const ChunkContent& content,
                                           const ChunkPasses& passes) const {
  ReducedChunk chunk;
  const ChunkParameters held = chunk_parameters(model_, units_, content);
  chunk.parameters = held.dense();
  if (plan.numerics.lora > 0) {
    chunk.frozen_parameters = held.dense();
    chunk.parameters = adapter_parameters(model_, plan, profile_.stack, content.layers);
  }
  chunk.expert_parameters = held.experts;
  chunk.forward_s = passes.forward_s;
  chunk.backward_s = passes.backward_s;
  return chunk;
}

StageTail ParallelEngine::stage_tail(const Plan& plan, const PipelineShape& shape,
                                     std::int32_t stage, const std::vector<ChunkPasses>& passes,
                                     const StageTimes& times, const ParallelStep& step,
                                     DataParallel& data, StepRecord* record) {
  std::vector<ReducedChunk> chunks;
  double deferred_s = 0;
  for (std::int32_t c = 0; c < shape.chunks; ++c) {
    const ChunkPasses& pass = of_chunk(passes, shape, {stage, c});
    ReducedChunk& chunk =
        chunks.emplace_back(reduced_chunk(plan, of_chunk(step.parts, shape, {stage, c}), pass));
    chunk.last_backward_s = seconds_of(times.last_backward[static_cast<std::size_t>(c)]);
    if (pass.deferred_s > 0) {
      deferred_s = pass.deferred_s;
      chunk.last_backward_s = seconds_of(times.end) + deferred_s;
    }
  }
  StageTail tail = data.tail(stage, chunks, seconds_of(times.end) + deferred_s);
  if (record != nullptr) record->deferred_s.push_back(deferred_s);
  if (model_.tied_head && plan.numerics.lora == 0 && shape.stages > 1 &&
      (stage == 0 || stage + 1 == shape.stages)) {
    // The embedding's gradient on the first stage and the head's on the last are one.
    const double bytes = 2 * f(units_.vocabulary());
    const double sum_s = costs_.transfer_s(0, bytes);
    tail.reduce_s += sum_s;
    tail.end_s += sum_s;
  }
  return tail;
}

ParallelEngine::StageSums ParallelEngine::stage_sums(const PipelineShape& shape, std::int32_t stage,
                                                     const std::vector<ChunkPasses>& passes,
                                                     const StageTimes& times, const StageTail& tail,
                                                     double step_s) const {
  StageSums sums;
  StageTime& parts = sums.parts;
  const double each = f(shape.passes());
  for (std::int32_t c = 0; c < shape.chunks; ++c) {
    const ChunkPasses& pass = of_chunk(passes, shape, {stage, c});
    for (const BodyTime* time : {&pass.times.forward, &pass.times.backward}) {
      parts.compute_s += each * (time->device_s - time->exposed());
      for (std::size_t g = 0; g < sums.exposed_s.size(); ++g) {
        sums.exposed_s[g] += each * time->exposed_s[g];
        sums.sent[g].add(time->sent[g], each);
      }
      sums.flops += each * time->flops;
    }
    sums.forward_s += each * pass.forward_s;
    sums.backward_s += each * pass.backward_s + pass.deferred_s;
    parts.compute_s += pass.deferred_s;
    parts.host_s += each * (pass.forward_s - pass.times.forward.device_s + pass.backward_s -
                            pass.times.backward.device_s);
  }
  parts.host_s += profile_.stack.host.step_s;
  sums.exposed_s[at(CommGroup::kPipeline)] += seconds_of(times.transfers);
  sums.exposed_s[at(CommGroup::kData)] += tail.reduce_s + tail.gather_s;
  sums.sent[at(CommGroup::kData)].add(tail.sent);
  for (const double time : sums.exposed_s) parts.exposed_s += time;
  parts.optimizer_s = tail.norm_s + tail.optimizer_s;
  const double rest = step_s - parts.compute_s - parts.exposed_s - parts.host_s - parts.optimizer_s;
  parts.bubble_s = rest < kRounding * step_s ? 0 : rest;
  return sums;
}

void ParallelEngine::finish(const Plan& plan, const PipelineShape& shape,
                            const std::vector<ChunkPasses>& passes, const PipelineResult& pipeline,
                            DataParallel& data, ParallelStep& step, StepRecord* record) {
  step.pipeline_s = seconds_of(pipeline.makespan);
  step.bubble = pipeline.bubble();
  step.steady_state_after = pipeline.simulated_micro_batches;
  std::vector<StageTail> tails;
  double reduced_s = 0, updated_s = 0;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    const StageTimes& times = pipeline.stages[static_cast<std::size_t>(stage)];
    const StageTail& tail =
        tails.emplace_back(stage_tail(plan, shape, stage, passes, times, step, data, record));
    reduced_s = std::max(reduced_s, tail.end_s);
    updated_s = std::max(updated_s, tail.norm_s + tail.optimizer_s + tail.gather_s);
  }
  step.step_s = reduced_s + updated_s + profile_.stack.host.step_s;
  if (record != nullptr) {
    record->tails = tails;
    record->reduced_s = reduced_s;
    record->updated_s = updated_s;
    record->unvaried_s = step.step_s;
  }
  double most = -1;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    const StageSums sums =
        stage_sums(shape, stage, passes, pipeline.stages[s], tails[s], step.step_s);
    const double busy = sums.forward_s + sums.backward_s;
    if (busy > most) {
      most = busy;
      step.busiest = stage;
      step.forward_s = sums.forward_s;
      step.backward_s = sums.backward_s;
      step.flops = sums.flops;
      step.exposed_s = sums.exposed_s;
      step.sent = sums.sent;
    }
    step.stages.push_back(sums.parts);
  }
}

CudaGraphs ParallelEngine::place(const Plan& plan) {
  const Cluster& cluster = profile_.cluster;
  if (cluster.nics_per_node == 0 && plan.gpus > nvlink_gpus(cluster)) {
    throw Error(
        fmt::format("cluster {} does not link its nodes (nics_per_node is 0), so {} GPUs "
                    "cannot train together; at most {} can",
                    cluster.id, plan.gpus, nvlink_gpus(cluster)));
  }
  const auto usual = parallel_word<CudaGraphs>(profile_.stack.parallel.cuda_graphs);
  const CudaGraphs graphs = plan.parallel.cuda_graphs.value_or(usual.value_or(CudaGraphs::kNone));
  costs_.place(layout_of(plan, profile_.cluster), graphs);
  const Parallelism& p = plan.parallel;
  const auto [units, is_new] = known_units_.try_emplace({p.tp, p.ep, p.etp});
  if (is_new) units->second = ModelUnits(model_, p);
  units_ = units->second;
  return graphs;
}

double ParallelEngine::varied_s(const Plan& plan, double step_s) const {
  const double nodes = std::ceil(f(plan.gpus) / f(profile_.cluster.gpus_per_node));
  return step_s *
         (1 + profile_.stack.parallel.step_jitter_per_doubling * std::log2(std::max(1.0, nodes)));
}

std::vector<ParallelEngine::ChunkPasses> ParallelEngine::time_chunks(
    const Plan& plan, const std::vector<ChunkContent>& parts, DataParallel& data) {
  const Bodies& bodies = known_bodies(plan);
  std::vector<ChunkPasses> passes;
  for (const ChunkContent& content : parts) {
    // Few chunks differ.
    std::size_t same = 0;
    ChunkContent alike = content;
    while (same < passes.size()) {
      alike.first_layer = parts[same].first_layer;
      if (alike == parts[same]) break;
      ++same;
    }
    passes.push_back(same < passes.size() ? passes[same] : time_chunk(plan, bodies, content, data));
  }
  return passes;
}

PipelineTimes ParallelEngine::pipeline_times(const PipelineShape& shape,
                                             const std::vector<ChunkPasses>& passes,
                                             double message_bytes) {
  const ParallelSoftware& stack = profile_.stack.parallel;
  PipelineTimes times;
  times.chunks.resize(static_cast<std::size_t>(shape.stages) *
                      static_cast<std::size_t>(shape.chunks));
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const ChunkPasses& pass = of_chunk(passes, shape, {stage, c});
      ChunkTimes& chunk =
          times.chunks[static_cast<std::size_t>(std::int64_t{stage} * shape.chunks + c)];
      chunk.forward = to_ns(pass.forward_s);
      chunk.weight_gradient = to_ns(pass.delayed_s);
      chunk.input_gradient = to_ns(pass.backward_s) - chunk.weight_gradient;
    }
  }
  double transfer_s = 0;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    transfer_s = costs_.transfer_s(stage % std::max(1, shape.stages - 1), message_bytes);
    times.transfer.push_back(to_ns(transfer_s));
  }
  times.blocking = shape.stages > 1 && stack.blocking_transfers &&
                   shape.info().blocking != BlockingTransfers::kNever;
  times.restart = to_ns(stack.transfer_sync_s);
  if (shape.interleaves() && !stack.overlapped_interleaving) {
    // Every pass waits for its own exchange.
    for (ChunkTimes& chunk : times.chunks) {
      chunk.forward += to_ns(transfer_s);
      chunk.input_gradient += to_ns(transfer_s);
    }
    for (Nanoseconds& transfer : times.transfer) transfer = 0;
  }
  return times;
}

ParallelStep ParallelEngine::run(const Plan& plan, StepRecord* record) {
  check_modelled(model_, plan, profile_);
  const PipelineShape shape = pipeline_shape(plan);
  check_shape(shape);
  ParallelStep step;
  step.parts = partition_layers(model_, plan, profile_.stack);
  step.layers = stage_layers(shape, step.parts);
  const CudaGraphs graphs = place(plan);
  DataParallel data(model_, plan, profile_.stack, costs_);
  if (record != nullptr) data.record(&record->reductions);
  const std::vector<ChunkPasses> passes = time_chunks(plan, step.parts, data);
  const RankShape rank = rank_shape(model_, plan);
  const double message = 2 * f(rank.sharded_tokens) * f(rank.hidden);
  PipelineTimes times = pipeline_times(shape, passes, message);
  const bool recorded = record != nullptr;
  PipelineResult pipeline =
      run_pipeline(shape, times, recorded ? StepLength::kWhole : StepLength::kShortened, recorded);
  finish(plan, shape, passes, pipeline, data, step, record);
  step.sent[at(CommGroup::kPipeline)].point_to_point +=
      messages_sent(shape, static_cast<std::int32_t>(step.busiest)) * message * f(shape.passes());
  step.step_s = varied_s(plan, step.step_s);
  if (recorded) {
    record->shape = shape;
    record->graphs = graphs;
    record->times = std::move(times);
    record->pipeline = std::move(pipeline);
  }
  step.memory = stage_memory(model_, plan, profile_, costs_.layout(), step.parts);
  return step;
}

}  // namespace shardwright::sim
