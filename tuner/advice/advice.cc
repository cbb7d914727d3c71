// SPDX-License-Identifier: Apache-2.0
#include "tuner/advice/advice.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/units.h"
#include "tuner/search/space.h"
#include "tuner/search/steps.h"

namespace shardwright::tuner {

namespace {

std::string plural(std::int64_t count, const char* one, const char* several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

template <typename Now>
void free_size(Changes& changes, const char* flag,
               std::optional<std::int64_t> GivenParallelism::*given, Now now) {
  if (!(changes.request().parallel.*given)) return;
  Request changed = changes.request();
  (changed.parallel.*given).reset();
  const std::optional<Found> found = changes.best(changed);
  if (!found) return;
  const std::string words = fmt::format("{} {}", flag, now(found->plan()));
  changes.add(words, "--" + words, changed, *found);
}

void free_sizes(Changes& changes) {
  using G = GivenParallelism;
  free_size(changes, "tp", &G::tp, [](const Plan& p) { return p.parallel.tp; });
  free_size(changes, "pp", &G::pp, [](const Plan& p) { return p.parallel.pp; });
  free_size(changes, "cp", &G::cp, [](const Plan& p) { return p.parallel.cp; });
  free_size(changes, "ep", &G::ep, [](const Plan& p) { return p.parallel.ep; });
  free_size(changes, "virtual-stages", &G::virtual_stages,
            [](const Plan& p) { return p.parallel.virtual_stages; });
}

void free_layers(Changes& changes, const Model& model) {
  const Request& request = changes.request();
  const bool none = request.recompute && request.recompute->recompute == Recompute::kNone;
  if (!request.ckpt_layers && !none) return;
  const std::int64_t now = none ? 0 : request.ckpt_layers.value_or(0);
  const std::int64_t all = ceil_div(model.layers, request.ckpt_stride);
  if (now >= all) return;
  const auto step = changes.least(static_cast<std::size_t>(all - now), [&](std::size_t i) {
    Request changed = request;
    changed.ckpt_layers = now + 1 + static_cast<std::int64_t>(i);
    if (none) changed.recompute.reset();
    return changed;
  });
  if (!step) return;
  const std::int64_t count = *step->request.ckpt_layers;
  std::string flags = fmt::format("--ckpt-layers {}", count);
  if (none) flags += " --recompute " + recompute_name(step->found.plan());
  changes.add(plural(count - now, "more checkpointed layer", "more checkpointed layers") +
                  fmt::format(" ({} of {})", count, model.layers),
              std::move(flags), step->request, step->found);
}

void free_micro_batch(Changes& changes) {
  const Request& request = changes.request();
  if (!request.micro_batch || *request.micro_batch == 1) return;
  std::vector<std::int64_t> smaller;
  const std::int64_t own =
      request.global_batch.value_or(0) / std::max<std::int64_t>(1, request.gpus);
  for (std::int64_t size = *request.micro_batch - 1; size >= 1; --size) {
    if (!request.global_batch || own % size == 0) smaller.push_back(size);
  }
  const auto step = changes.least(smaller.size(), [&](std::size_t i) {
    Request changed = request;
    changed.micro_batch = smaller[i];
    if (request.global_batch) changed.grad_accum.reset();
    return changed;
  });
  if (!step) return;
  const Plan& plan = step->found.plan();
  std::string flags = fmt::format("--micro-batch {}", plan.micro_batch);
  if (request.grad_accum) flags += fmt::format(" --grad-accum {}", plan.grad_accum);
  changes.add(fmt::format("micro-batch {} instead of {}", plan.micro_batch, *request.micro_batch),
              std::move(flags), step->request, step->found);
}

/// Knobs whose other values have no order: left to the search.
void free_others(Changes& changes) {
  const Request& request = changes.request();
  if (!request.strategies.empty() || request.shard_group) {
    // A strategy that is held keeps ranks from sharing more than data, and so it stays.
    Request changed = features_of(request).any() ? request : sharing_data_alone(request);
    changed.strategies.clear();
    changed.shard_group.reset();
    if (const std::optional<Found> found = changes.best(changed)) {
      const Plan& plan = found->plan();
      changed.parallel = request.parallel;
      changed.strategies = {plan.strategy};
      std::string what = fmt::format("the strategy {}", name_of(plan.strategy));
      std::string flags = fmt::format("--strategy {}", name_of(plan.strategy));
      if (info_of(plan.strategy).hybrid || request.shard_group) {
        const std::int64_t group =
            resolved_shard_group(plan, changes.profile().cluster.gpus_per_node);
        what += fmt::format(" in groups of {}", group);
        flags += fmt::format(" --shard-group {}", group);
        changed.shard_group = group;
      }
      changes.add(std::move(what), std::move(flags), changed, *found);
    }
  }
  if (request.recompute && request.recompute->recompute != Recompute::kNone) {
    Request changed = request;
    changed.recompute.reset();
    if (const std::optional<Found> found = changes.best(changed)) {
      const std::string name = recompute_name(found->plan());
      changes.add("recompute " + name, "--recompute " + name, changed, *found);
    }
  }
  if (request.attention == AttentionKind::kEager) {
    Request changed = request;
    changed.attention = AttentionKind::kFlash;
    changes.keep("flash attention", "--attention flash", changed, changes.best(changed));
  }
  if (request.loss_chunks.value_or(kLossChunks) < kLossChunks) {
    Request changed = request;
    changed.loss_chunks = kLossChunks;
    changes.keep(fmt::format("the loss in {} pieces", kLossChunks),
                 fmt::format("--loss-chunks {}", kLossChunks), changed, changes.best(changed));
  }
  const Stack& stack = changes.profile().stack;
  if (stack.memory != MemoryManager::kStatic && request.allocator != AllocatorKind::kExpandable &&
      !(request.allocator == AllocatorKind::kStack && stack.allocator.expandable_segments)) {
    Request changed = request;
    changed.allocator = AllocatorKind::kExpandable;
    changes.keep("expandable segments", "--allocator expandable", changed, changes.best(changed));
  }
  if (request.buffers.value_or(2) > 2) {
    Request changed = request;
    changed.buffers = 2;
    changes.keep(fmt::format("2 buffers instead of {}", *request.buffers), "--buffers 2", changed,
                 changes.best(changed));
  }
}

void shorten_sequence(Changes& changes) {
  const Request& request = changes.request();
  const std::int64_t grain = request.seq_len > 2048 ? 512 : request.seq_len > 512 ? 128 : 16;
  std::vector<std::int64_t> shorter;
  for (std::int64_t length = (request.seq_len - 1) / grain * grain; length >= grain;
       length -= grain) {
    shorter.push_back(length);
  }
  const auto step = changes.least(shorter.size(), [&](std::size_t i) {
    Request changed = request;
    changed.seq_len = shorter[i];
    return changed;
  });
  if (!step) return;
  changes.add(fmt::format("sequence {} instead of {}", step->request.seq_len, request.seq_len),
              fmt::format("--seq-len {}", step->request.seq_len), step->request, step->found);
}

void add_gpus(Changes& changes) {
  const Request& request = changes.request();
  const Cluster& cluster = changes.profile().cluster;
  const bool linked = cluster.nics_per_node > 0;
  const std::int64_t node = cluster.gpus_per_node;
  const std::int64_t most = linked ? kMostGpus : node;
  std::vector<std::int64_t> counts;
  for (std::int64_t gpus = request.gpus + 1; gpus <= most; ++gpus) {
    if (gpus > node ? gpus % node != 0 : node % gpus != 0) continue;
    // Replicas that several ranks share take batches that not every rank has a part of.
    const bool doubled = gpus % request.gpus == 0 && is_power_of_two(gpus / request.gpus);
    if (!request.global_batch || *request.global_batch % gpus == 0 || doubled)
      counts.push_back(gpus);
  }
  const auto step = changes.least(counts.size(), [&](std::size_t i) {
    Request changed = request;
    changed.gpus = counts[i];
    return changed;
  });
  if (!step) return;
  changes.add(fmt::format("{} GPUs instead of {}", step->request.gpus, request.gpus),
              fmt::format("--gpus {}", step->request.gpus), step->request, step->found);
}

/// Master weights in bf16, and where these alone do not suffice, moments and gradients, too.
void narrow_masters(Changes& changes) {
  Request changed = changes.request();
  changed.master_dtype = DType::kBf16;
  std::string words = "bf16 master weights", flags = "--master-dtype bf16";
  const auto narrow = [&](std::optional<DType>& dtype, bool allowed, const char* what,
                          const char* flag) {
    if (dtype == DType::kBf16 || allowed) return;
    dtype = DType::kBf16;
    words += what;
    flags += flag;
  };
  const auto suffices = [&] {
    const std::optional<Found> found = changes.best(changed);
    changes.keep(words + " (changes the arithmetic)", flags, changed, found);
    return found.has_value();
  };
  if (suffices()) return;
  narrow(changed.moment_dtype, changed.allow_bf16_moments, ", moments", " --moment-dtype bf16");
  narrow(changed.reduce_dtype, changed.allow_bf16_reduce, ", gradients", " --reduce-dtype bf16");
  suffices();
}

void change_arithmetic(Changes& changes) {
  const Request& request = changes.request();
  if (request.moment_dtype.value_or(DType::kFp32) == DType::kFp32 && !request.allow_bf16_moments) {
    Request changed = request;
    changed.moment_dtype = DType::kBf16;
    changes.keep("bf16 moments (changes the arithmetic)", "--moment-dtype bf16", changed,
                 changes.best(changed));
  }
  if (request.master_dtype.value_or(DType::kFp32) == DType::kFp32 && !request.allow_bf16_master)
    narrow_masters(changes);
  if (request.reduce_dtype.value_or(DType::kFp32) == DType::kFp32 && !request.allow_bf16_reduce &&
      request.gpus > 1) {
    Request changed = request;
    changed.reduce_dtype = DType::kBf16;
    changes.keep("bf16 gradient reduction (changes the arithmetic)", "--reduce-dtype bf16", changed,
                 changes.best(changed));
  }
}

/// The states of the optimizer in 8 bits, or in the host's memory; those of adapters are small.
void lighten_optimizer(Changes& changes) {
  const Request& request = changes.request();
  if (request.parallel.lora) return;
  const auto keep = [&](std::string what, std::string flags, Request changed) {
    std::optional<Found> found = changes.best(changed);
    if (!found && !changed.loss_chunks) {
      changed.loss_chunks = kLossChunks;
      found = changes.best(changed);
      what += ", the loss in pieces";
      flags += fmt::format(" --loss-chunks {}", kLossChunks);
    }
    changes.keep(std::move(what), std::move(flags), changed, std::move(found));
  };
  if (!request.parallel.optimizer && request.allowed_optimizers.empty()) {
    Request changed = request;
    changed.parallel.optimizer = Optimizer::kAdamw8bit;
    keep("8-bit AdamW (changes the arithmetic)", "--optimizer adamw-8bit", changed);
  }
  if (request.offload == Offload::kNone) {
    Request changed = request;
    changed.offload = Offload::kOptimizer;
    keep("the optimizer in the host's memory", "--offload optimizer", changed);
  }
}

/// The most head-room that can be kept, where what was asked for cannot.
void lower_headroom(Changes& changes) {
  const double asked = changes.criteria().headroom;
  if (asked <= 0) return;
  AskedTerms terms = changes.terms();
  terms.headroom = 0;
  if (!changes.best(changes.request(), terms)) return;
  terms.objective = Objective::kHeadroom;
  const std::optional<Found> smallest = changes.best(changes.request(), terms);
  if (!smallest) return;
  const auto usable = static_cast<double>(smallest->prediction.memory.usable_bytes);
  terms.objective.reset();
  terms.headroom = std::floor((1 - smallest->score / usable) * 1000) / 1000;
  const std::optional<Found> found = changes.best(changes.request(), terms);
  if (!found) return;
  changes.add(
      fmt::format("head-room of {:.1f} % instead of {:.1f} %", 100 * *terms.headroom, 100 * asked),
      fmt::format("--headroom {:.1f}%", 100 * *terms.headroom), changes.request(), *found);
  changes.last().headroom = *terms.headroom;
}

void trust_the_prediction(Changes& changes) {
  if (!changes.robust()) return;
  AskedTerms terms = changes.terms();
  terms.robust = false;
  if (const std::optional<Found> found = changes.best(changes.request(), terms)) {
    changes.add("no margin for errors of the prediction", "no --robust", changes.request(), *found);
    changes.last().robust = false;
  }
}

Request all_free(const Request& request) {
  Request changed = request;
  changed.strategies.clear();
  changed.shard_group.reset();
  changed.micro_batch.reset();
  if (request.global_batch) changed.grad_accum.reset();
  changed.ckpt_layers.reset();
  changed.recompute.reset();
  changed.buffers.reset();
  changed.attention.reset();
  changed.loss_chunks.reset();
  GivenParallelism& sizes = changed.parallel;
  sizes.tp = sizes.pp = sizes.cp = sizes.ep = sizes.etp = sizes.virtual_stages = std::nullopt;
  return changed;
}

bool holds_knobs(const Request& request) {
  return !request.strategies.empty() || request.shard_group || request.micro_batch ||
         request.ckpt_layers || request.recompute || request.buffers || request.attention ||
         request.loss_chunks || request.parallel.tp || request.parallel.pp || request.parallel.cp ||
         request.parallel.ep || request.parallel.etp || request.parallel.virtual_stages;
}

/// What each change leads to; where none is enough, with every knob let go.
std::vector<Way> ways_by(const Asking& asking, const Model& model, const Request& request,
                         std::size_t count) {
  Changes changes(asking, request);
  free_sizes(changes);
  free_layers(changes, model);
  free_micro_batch(changes);
  free_others(changes);
  lower_headroom(changes);
  trust_the_prediction(changes);
  const auto change_the_job = [](Changes& of) {
    shorten_sequence(of);
    add_gpus(of);
    change_arithmetic(of);
    lighten_optimizer(of);
  };
  change_the_job(changes);
  if (!changes.empty() || changes.stopped() || !holds_knobs(request))
    return std::move(changes).cheapest(count);

  const std::string freed = "every knob left to the search";
  const Request free = all_free(request);
  Changes together(asking, free);
  together.keep(freed, "none of the knobs", free, together.best(free));
  if (together.empty()) change_the_job(together);
  std::vector<Way> ways = std::move(together).cheapest(count);
  for (Way& way : ways) {
    if (way.what == freed) continue;
    way.what = freed + ", and " + way.what;
    way.flags = "none of the knobs but " + way.flags;
  }
  return ways;
}

}  // namespace

void set_plan(Way& way, Found found) {
  const Plan& plan = found.plan();
  way.gpu_s_per_token =
      found.prediction.time.iteration_s * static_cast<double>(plan.gpus) / tokens_per_step(plan);
  way.plan = std::move(found);
}

Advice advise(Search& search, const Model& model, const std::vector<Framework>& frameworks,
              const Request& request, const SearchOptions& options, bool robust,
              std::size_t count) {
  Advice advice;
  if (const std::optional<Overshoot> nearest = search.nearest())
    advice.closest = search.judge({nearest->plan}, nearest->framework).front();
  SearchOptions quiet = options;
  quiet.progress = nullptr;
  const auto search_of = [&](const Request& changed, const AskedTerms& terms) {
    SearchOptions own = quiet;
    own.criteria.objective = terms.objective.value_or(own.criteria.objective);
    std::vector<FrameworkPlans> plans = plans_of(changed, model, frameworks, terms.robust);
    for (FrameworkPlans& one : plans) one.headroom = terms.headroom.value_or(one.headroom);
    return Search(model, std::move(plans), own);
  };
  Asking asking{frameworks.front().profile, options.criteria, robust, options.stop, {}, {}};
  asking.best = [&](const Request& changed, const AskedTerms& terms) -> std::optional<Found> {
    Search of_change = search_of(changed, terms);
    std::vector<Found> found = of_change.best(1);
    if (found.empty()) return std::nullopt;
    return std::move(found.front());
  };
  asking.improve = [&](Way& way) {
    try {
      Search of_way = search_of(way.request, {way.headroom, std::nullopt, way.robust});
      climb(way.plan,
            [&](const Found& found) { return steps_of(of_way, model, way.request, quiet, found); });
    } catch (const SearchEnded&) {  // the plan stays what it is
    }
  };
  advice.ways = ways_by(asking, model, request, count);
  return advice;
}

std::vector<Way> ways_out(const Model& model, const profiles::Profile& profile,
                          const Request& request, const Answering& answering,
                          const std::atomic<bool>* stop, std::size_t count) {
  Asking asking{&profile, {}, false, stop, {}, {}};
  asking.best = [&](const Request& changed, const AskedTerms&) { return answering(changed); };
  return ways_by(asking, model, request, count);
}

namespace {

std::optional<Found> answered(const Answering& answering, const Request& request) {
  try {
    return answering(request);
  } catch (const InvalidPlan&) {  // no framework has such a plan
    return std::nullopt;
  }
}

/// With the loss in pieces where nothing else fits.
void keep_adapters(const std::string& what, const std::string& flags, Request changed,
                   const Answering& answering, std::vector<Way>& ways) {
  std::optional<Found> found = answered(answering, changed);
  Way way;
  way.what = what;
  way.flags = flags;
  if (!found && !changed.loss_chunks) {
    changed.loss_chunks = kLossChunks;
    found = answered(answering, changed);
    way.what += ", the loss in pieces";
    way.flags += fmt::format(" --loss-chunks {}", kLossChunks);
  }
  if (!found) return;
  way.request = std::move(changed);
  set_plan(way, *std::move(found));
  ways.push_back(std::move(way));
}

}  // namespace

std::int64_t fine_tuning_batch(std::int64_t gpus) {
  constexpr std::int64_t kUsual = 16;
  return ceil_div(kUsual, gpus) * gpus;
}

bool trains_adapters(const Way& way) {
  return way.plan.plan().numerics.lora > 0;
}

void rank_ways(std::vector<Way>& ways, std::int64_t gpus) {
  constexpr std::int64_t kNode = 8;  // beyond which nobody gives up training the model itself
  const auto rank = [&](const Way& way) {
    const bool more = way.request.gpus > gpus, adapters = trains_adapters(way);
    const int group = adapters ? (gpus <= kNode ? 1 : 3) : (more ? 2 : 0);
    return std::make_pair(group, way.gpu_s_per_token);
  };
  std::stable_sort(ways.begin(), ways.end(),
                   [&](const Way& a, const Way& b) { return rank(a) < rank(b); });
}

std::vector<Way> adapter_ways(const Request& request, const Answering& answering) {
  std::vector<Way> ways;
  if (request.parallel.quantize.value_or(Quantize::kNone) != Quantize::kNone) return ways;
  Request changed = request;
  if (!request.global_batch) changed.global_batch = fine_tuning_batch(request.gpus);
  changed.micro_batch.reset();
  changed.grad_accum.reset();
  const std::int64_t rank = request.parallel.lora.value_or(kUsualLoraRank);
  changed.parallel.lora = rank;
  changed.seq_len = request.adapters_seq_len.value_or(request.seq_len);
  std::string sequences;
  if (changed.seq_len != request.seq_len)
    sequences = fmt::format(" on sequences of {}", changed.seq_len);
  if (!request.parallel.lora)
    keep_adapters(fmt::format("LoRA of rank {}{}", rank, sequences), "--task lora", changed,
                  answering, ways);
  for (const Quantize quantize : {Quantize::kInt8, Quantize::kNf4}) {
    changed.parallel.quantize = quantize;
    const std::string_view name = name_of(quantize);
    keep_adapters(fmt::format("QLoRA of rank {} over {}{}", rank, name, sequences),
                  fmt::format("--task qlora --quantize {}", name), changed, answering, ways);
  }
  return ways;
}

std::vector<OtherStrategy> other_strategies(Search& search, const Space& space,
                                            const Found& choice) {
  const Plan& chosen = choice.plan();
  std::vector<OtherStrategy> others;
  for (const Strategy strategy : space.strategies) {
    if (strategy == chosen.strategy) continue;
    OtherStrategy other;
    other.strategy = strategy;
    const auto wanted = [&, strategy](const Plan& plan) {
      return plan.strategy == strategy && plan.stack == chosen.stack &&
             plan.parallel == chosen.parallel &&
             plan.numerics.precision == chosen.numerics.precision;
    };
    std::vector<Found> best = search.best(1, wanted);
    if (!best.empty()) {
      other.cost = best.front().score / choice.score - 1;
      other.best = std::move(best.front());
    } else if (const std::optional<Overshoot> nearest = search.nearest(wanted)) {
      other.closest = search.judge({nearest->plan}, nearest->framework).front();
    } else {
      continue;  // stopped before any of its plans was looked at, or none makes sense
    }
    others.push_back(std::move(other));
  }
  std::stable_sort(others.begin(), others.end(), [](const auto& a, const auto& b) {
    if (a.best.has_value() != b.best.has_value()) return a.best.has_value();
    return a.best ? a.cost < b.cost : a.closest->excess_bytes < b.closest->excess_bytes;
  });
  return others;
}

}  // namespace shardwright::tuner
