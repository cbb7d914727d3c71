// SPDX-License-Identifier: Apache-2.0
#include "sim/parallel/parallel_step.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "profiles/parallel_kernels.h"
#include "sim/core/error.h"
#include "sim/core/strategy.h"
#include "sim/parallel/precision_body.h"
#include "sim/parallel/real.h"

namespace shardwright::sim {
namespace {

Nanoseconds to_ns(double seconds) {
  return static_cast<Nanoseconds>(std::llround(seconds * 1e9));
}

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

std::size_t at(CommGroup group) {
  return static_cast<std::size_t>(group);
}

}  // namespace

void check_modelled(const Model& model, const Plan& plan, const profiles::Profile& profile) {
  const Stack& stack = profile.stack;
  if (!stack.parallel.supported) {
    throw Error(
        fmt::format("{}, which the stack {} does not do, expected a stack such as "
                    "megatron-core",
                    beyond_data_parallel(plan), stack.id));
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
  if (n.lora > 0) throw Error("lora is given, which is not modelled yet, expected 0");
  if (plan.offload == Offload::kOptimizer) {
    throw Error(
        fmt::format("offload is {}, which is not modelled yet, expected none", offload_name(plan)));
  }
  if (model.layers < plan.parallel.pp) {
    throw Error(fmt::format("pp is {}, more than the {} layers, expected at most {}",
                            plan.parallel.pp, model.layers, model.layers));
  }
}

ParallelEngine::ParallelEngine(const Model& model, const profiles::Profile& profile)
    : model_(model), profile_(profile), costs_(profile) {}

ParallelEngine::Bodies ParallelEngine::time_bodies(const Plan& plan) {
  const BodyWriter writer(model_, plan, profile_.stack);
  const auto timed = [&](const Body& body) {
    PassTimes times;
    times.forward = costs_.time(body.forward, false);
    times.backward = costs_.time(body.backward, true);
    if (!body.recompute.empty()) times.backward.add(costs_.time(body.recompute, false), 1);
    if (!profile_.stack.parallel.accumulates_in_product && plan.grad_accum > 1) {
      // Every gradient is added to the accumulated one by a kernel of its own.
      double weights = 0;
      for (const BodyOp& op : body.backward) {
        if (op.kind == OpKind::kWeightGradient)
          weights += f(op.work.m) * f(op.work.n) * f(op.groups);
      }
      times.backward.device_s += costs_.memory_s(weights * profile_.stack.gradient_accumulate_bytes,
                                                 profile_.stack.copies.add);
    }
    return times;
  };
  Bodies bodies;
  const bool mixture = model_.is_mixture();
  const bool dense = model_.expert_layers() < model_.layers;
  const bool again = plan.recompute != Recompute::kNone && plan.ckpt_layers > 0;
  if (dense) bodies.plain = timed(writer.layer(false));
  if (dense && again) bodies.recomputed = timed(writer.layer(true));
  if (mixture) bodies.experts = timed(writer.layer(false, true));
  if (mixture && again) bodies.recomputed_experts = timed(writer.layer(true, true));
  if (model_.mtp_layers > 0) bodies.prediction = timed(writer.prediction());
  bodies.embedding = timed(writer.embedding());
  bodies.head = timed(writer.head());
  return bodies;
}

double ParallelEngine::deferred_head_s(const Plan& plan, const Bodies& bodies) const {
  const BodyWriter writer(model_, plan, profile_.stack);
  if (plan.parallel.pp == 1 || writer.tensor_overlap() != TensorOverlap::kUserbuffers) return 0;
  const std::int64_t most = profiles::parallel_kernels().deferred_head_gradients;
  return f(std::min(most, plan.grad_accum)) * bodies.head.backward.delayed_s;
}

ParallelEngine::ChunkPasses ParallelEngine::time_chunk(const Plan& plan, const Bodies& bodies,
                                                       const ChunkContent& content,
                                                       DataParallel& data) {
  ChunkPasses chunk;
  const auto add = [&](const PassTimes& times, std::int64_t count) {
    if (count == 0) return;
    chunk.times.forward.add(times.forward, f(count));
    chunk.times.backward.add(times.backward, f(count));
  };
  // Checkpointed layers are spread over those with experts and those without.
  const std::int64_t mixed_again =
      content.layers == 0 ? 0 : content.recomputed * content.expert_layers / content.layers;
  const std::int64_t dense_again = content.recomputed - mixed_again;
  add(bodies.plain, content.layers - content.expert_layers - dense_again);
  add(bodies.recomputed, dense_again);
  add(bodies.experts, content.expert_layers - mixed_again);
  add(bodies.recomputed_experts, mixed_again);
  add(bodies.prediction, content.extra_predictions);
  add(bodies.embedding, content.embedding ? 1 : 0);
  add(bodies.head, content.head ? 1 : 0);
  if (content.head) {
    chunk.deferred_s = deferred_head_s(plan, bodies);
    chunk.times.backward.device_s -= chunk.deferred_s / f(plan.grad_accum);
    chunk.times.backward.delayed_s -= chunk.deferred_s / f(plan.grad_accum);
  }
  if (data.per_layer()) {
    // Gathers of the next layer and reductions of the one before run beside a layer.
    const ChunkParameters held = chunk_parameters(model_, plan, content);
    const double gather =
        data.gather_s(held.dense() / f(content.layers), held.experts / f(content.layers)) *
        f(content.layers);
    const double reduce =
        data.reduce_s(held.dense() / f(content.layers), held.experts / f(content.layers)) *
        f(content.layers);
    const auto hide = [&](BodyTime& pass, double communication) {
      const double late =
          std::max(0.0, communication - pass.device_s) + communication / f(content.layers);
      pass.device_s += late;
      pass.exposed_s[at(CommGroup::kData)] += late;
    };
    hide(chunk.times.forward, gather);
    hide(chunk.times.backward, gather + reduce);
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

void ParallelEngine::finish(const Plan& plan, const PipelineShape& shape,
                            const std::vector<ChunkPasses>& passes, const PipelineResult& pipeline,
                            DataParallel& data, ParallelStep& step) {
  const double micro_batches = f(plan.grad_accum);
  step.pipeline_s = seconds(pipeline.makespan);
  step.bubble = pipeline.bubble();
  step.steady_state_after = pipeline.simulated_micro_batches;
  std::vector<StageTail> tails;
  double reduced_s = 0, updated_s = 0;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    const StageTimes& times = pipeline.stages[static_cast<std::size_t>(stage)];
    std::vector<ReducedChunk> chunks;
    double deferred_s = 0;
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const auto part = static_cast<std::size_t>(model_part(shape, {stage, c}));
      ReducedChunk& chunk = chunks.emplace_back();
      const ChunkParameters held = chunk_parameters(model_, plan, step.parts[part]);
      chunk.parameters = held.dense();
      chunk.expert_parameters = held.experts;
      chunk.forward_s = passes[part].forward_s;
      chunk.backward_s = passes[part].backward_s;
      chunk.last_backward_s = seconds(times.last_backward[static_cast<std::size_t>(c)]);
      if (passes[part].deferred_s > 0) {
        deferred_s = passes[part].deferred_s;
        chunk.last_backward_s = seconds(times.end) + deferred_s;
      }
    }
    StageTail tail = data.tail(stage, chunks, seconds(times.end) + deferred_s);
    if (model_.tied_head && shape.stages > 1 && (stage == 0 || stage + 1 == shape.stages)) {
      // The embedding's gradient on the first stage and the head's on the last are one.
      const double bytes = 2 * f(count_parameters(model_).embedding) / f(plan.parallel.tp);
      const double sum_s = costs_.transfer_s(0, bytes);
      tail.reduce_s += sum_s;
      tail.end_s += sum_s;
    }
    reduced_s = std::max(reduced_s, tail.end_s);
    updated_s = std::max(updated_s, tail.norm_s + tail.optimizer_s + tail.gather_s);
    tails.push_back(tail);
  }
  step.step_s = reduced_s + updated_s + profile_.stack.host.step_s;
  double most = -1;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    const StageTail& tail = tails[static_cast<std::size_t>(stage)];
    const StageTimes& times = pipeline.stages[static_cast<std::size_t>(stage)];
    StageTime parts;
    std::array<double, kCommGroups> exposed{}, sent{};
    double forward = 0, backward = 0, flops = 0;
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const ChunkPasses& pass = passes[static_cast<std::size_t>(model_part(shape, {stage, c}))];
      const double each = shape.kind == PipelineKind::kDualpipe ? micro_batches / 2 : micro_batches;
      for (const BodyTime* time : {&pass.times.forward, &pass.times.backward}) {
        parts.compute_s += each * (time->device_s - time->exposed());
        for (std::size_t g = 0; g < exposed.size(); ++g) {
          exposed[g] += each * time->exposed_s[g];
          sent[g] += each * time->sent_bytes[g];
        }
        flops += each * time->flops;
      }
      forward += each * pass.forward_s;
      backward += each * pass.backward_s + pass.deferred_s;
      parts.compute_s += pass.deferred_s;
      parts.host_s += each * (pass.forward_s - pass.times.forward.device_s + pass.backward_s -
                              pass.times.backward.device_s);
    }
    parts.host_s += profile_.stack.host.step_s;
    exposed[at(CommGroup::kPipeline)] += seconds(times.transfers);
    exposed[at(CommGroup::kData)] += tail.reduce_s + tail.gather_s;
    sent[at(CommGroup::kData)] += tail.sent_bytes;
    for (const double time : exposed) parts.exposed_s += time;
    parts.optimizer_s = tail.norm_s + tail.optimizer_s;
    parts.bubble_s = std::max(
        0.0, step.step_s - parts.compute_s - parts.exposed_s - parts.host_s - parts.optimizer_s);
    const double busy = forward + backward;
    if (busy > most) {
      most = busy;
      step.busiest = stage;
      step.forward_s = forward;
      step.backward_s = backward;
      step.flops = flops;
      step.exposed_s = exposed;
      step.sent_bytes = sent;
    }
    step.stages.push_back(parts);
  }
}

ParallelStep ParallelEngine::run(const Plan& plan) {
  check_modelled(model_, plan, profile_);
  const PipelineShape shape = pipeline_shape(plan);
  check_shape(shape);
  ParallelStep step;
  step.parts = divide_layers(model_, plan);
  const auto usual_graphs = parallel_word<CudaGraphs>(profile_.stack.parallel.cuda_graphs);
  costs_.place(layout_of(plan, profile_.cluster),
               plan.parallel.cuda_graphs.value_or(usual_graphs.value_or(CudaGraphs::kNone)));
  DataParallel data(model_, plan, profile_.stack, costs_);
  const Bodies bodies = time_bodies(plan);
  std::vector<ChunkPasses> passes;
  for (const ChunkContent& content : step.parts) {
    // Few chunks differ.
    std::size_t same = 0;
    ChunkContent alike = content;
    while (same < passes.size()) {
      alike.first_layer = step.parts[same].first_layer;
      if (alike == step.parts[same]) break;
      ++same;
    }
    passes.push_back(same < passes.size() ? passes[same] : time_chunk(plan, bodies, content, data));
  }
  const Stack& stack = profile_.stack;
  PipelineTimes times;
  times.chunks.resize(static_cast<std::size_t>(shape.stages * shape.chunks));
  step.layers.assign(static_cast<std::size_t>(shape.stages), 0);
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const auto part = static_cast<std::size_t>(model_part(shape, {stage, c}));
      const ChunkPasses& pass = passes[part];
      ChunkTimes& chunk = times.chunks[static_cast<std::size_t>(stage * shape.chunks + c)];
      chunk.forward = to_ns(pass.forward_s);
      chunk.weight_gradient = to_ns(pass.delayed_s);
      chunk.input_gradient = to_ns(pass.backward_s) - chunk.weight_gradient;
      step.layers[static_cast<std::size_t>(stage)] += step.parts[part].layers;
    }
  }
  const RankShape rank = rank_shape(model_, plan);
  const double message = 2 * f(rank.sharded_tokens) * f(rank.hidden);
  double transfer_s = 0;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    transfer_s = costs_.transfer_s(stage % std::max(1, shape.stages - 1), message);
    if (!std::isfinite(transfer_s)) {
      throw Error(
          fmt::format("cluster {} does not link its nodes (nics_per_node is 0), so {} GPUs "
                      "cannot train together; at most {} can",
                      profile_.cluster.id, plan.gpus, profile_.cluster.gpus_per_node));
    }
    times.transfer.push_back(to_ns(transfer_s));
  }
  const bool interleaves = shape.kind == PipelineKind::kInterleaved;
  times.blocking =
      shape.stages > 1 && stack.parallel.blocking_transfers &&
      (shape.kind == PipelineKind::kGpipe || shape.kind == PipelineKind::kOneForwardOneBackward);
  times.restart = to_ns(stack.parallel.transfer_sync_s);
  if (interleaves && !stack.parallel.overlapped_interleaving) {
    // Every pass waits for its own exchange.
    for (std::size_t i = 0; i < times.chunks.size(); ++i) {
      times.chunks[i].forward += to_ns(transfer_s);
      times.chunks[i].input_gradient += to_ns(transfer_s);
    }
    for (Nanoseconds& transfer : times.transfer) transfer = 0;
  }
  const PipelineResult pipeline = run_pipeline(shape, times);
  finish(plan, shape, passes, pipeline, data, step);
  if (shape.stages > 1) {
    const double each_way = shape.chunks * 2 * message * f(plan.grad_accum);
    step.sent_bytes[at(CommGroup::kPipeline)] += each_way;
  }
  const double nodes = std::ceil(f(plan.gpus) / f(profile_.cluster.gpus_per_node));
  step.step_s *= 1 + stack.parallel.step_jitter_per_doubling * std::log2(std::max(1.0, nodes));
  step.memory = stage_memory(model_, plan, profile_, costs_.layout(), step.parts);
  return step;
}

}  // namespace shardwright::sim
